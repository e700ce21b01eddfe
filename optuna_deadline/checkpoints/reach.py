"""Who reaches a checkpoint: pure, and careful to forbid only what is known to fail."""

from __future__ import annotations

from typing import Protocol


class Place(Protocol):
    """A host and the place that it keeps checkpoints in: a worker's, or a checkpoint's own."""

    @property
    def host(self) -> str | None:
        """The host's name."""

    @property
    def store(self) -> str | None:
        """As in :class:`~optuna_deadline.allocation.records.About`."""


def reaches(who: Place, where: Place) -> bool:
    """Whether who works at one place can read what was written at another one.

    A URL is read by everyone, a host's own folders on that host, and a shared folder by those who
    have it too. Of whom nothing is known, nothing is held against.
    """
    if where.host is None or where.store is None or who.store is None:
        return True
    return "://" in where.store or who.host == where.host or who.store == where.store
