"""The sources of a loop's batches: each loader distributed to the slots, or sought."""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Iterator
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from optuna_deadline.errors import DeadlineError
from optuna_deadline_torch.loaders import (
    Deal,
    Stateful,
    can_be_dealt,
    elastic_loader,
    refuse_gangs,
    warn_of_replay,
)

_log = logging.getLogger("optuna_deadline")


class LoaderSources:
    """The loaders that a segment's loop has used.

    Args:
        deal: Makes the elastic batch sampler of a loader that can be distributed.
        slots: Of the segment; None if nothing is ever resumed.
    """

    def __init__(self, deal: Deal, slots: int | None) -> None:
        self._deal = deal
        self._slots = slots
        self._known: dict[int, tuple[Any, Any]] = {}
        self._stateful: Stateful | None = None
        self._begin_at: dict[str, Any] | None = None

    def get(self, loader: Any) -> Any:
        """The iterable for a loader; the same each time, so that its workers may be kept.

        Raises:
            DeadlineError: It cannot be distributed, and there are several slots.
        """
        if id(loader) not in self._known:
            if can_be_dealt(loader):
                source: Any = elastic_loader(loader, self._deal)
            else:
                source = loader
                self._lead(loader)
            self._known[id(loader)] = loader, source
        return self._known[id(loader)][1]

    def get_beside(self, loader: Any) -> Any:
        """The iterable for a loader beside the first one.

        Raises:
            DeadlineError: It cannot be distributed.
        """
        if not can_be_dealt(loader):
            raise DeadlineError(
                f"A loader beside the first one must be dealt too, and {type(loader).__name__}"
                " cannot be: pass DataLoaders over map-style datasets to loop.batches(a, b)."
            )
        return self.get(loader)

    def resume(self, state: dict[str, Any] | None) -> None:
        """Resume the loader with a state from this one."""
        self._begin_at = state

    @property
    def remembers(self) -> bool:
        """Whether a loader resumes from its own state."""
        return self._stateful is not None

    def state(self) -> dict[str, Any] | None:
        """The state of the loader that has one."""
        return None if self._stateful is None else self._stateful.state_dict()

    def _lead(self, loader: Any) -> None:
        if self._slots is None:
            return
        refuse_gangs(loader, self._slots)
        if isinstance(loader, Stateful):
            self._stateful = loader
            if self._begin_at is not None:
                loader.load_state_dict(self._begin_at)
                self._begin_at = None
        else:
            warn_of_replay(loader)


def endless(source: Any) -> Iterator[Any]:
    """The batches of a loader that starts again, with another order, when it ends.

    Raises:
        DeadlineError: It has none.
    """
    while True:
        empty = True
        for batch in source:
            empty = False
            yield batch
        if empty:
            raise DeadlineError("A loader beside the first one has no batches.")


def warn_if_zipped(batches: Any) -> bool:
    """Warn if a loader is zipped with the loop's batches; returns whether it is.

    Args:
        batches: The loop's iterator of batches, in use.
    """
    kinds = (_BaseDataLoaderIter, itertools.cycle)
    zipped = any(
        type(holder) is tuple and any(isinstance(one, kinds) for one in holder)
        for holder in gc.get_referrers(batches)  # zip keeps a tuple of iterators
    )
    if zipped:
        _log.warning(
            "A loader beside loop.batches(...), as in zip(loop.batches(a), b), is not dealt to the"
            " slots and starts again each time that the trial resumes: write"
            " `for x, y in loop.batches(a, b)`, where b resumes at its position."
        )
    return zipped


def warn_if_counted(batches: Any) -> None:
    """Warn if the loop's batches are counted from where an epoch resumes.

    Args:
        batches: The loop's iterator of batches, in use.
    """
    for holder in gc.get_referrers(batches):
        if isinstance(holder, (enumerate, itertools.islice)):
            _log.warning(
                "%s(loop.batches(...)) counts from 0 where an epoch resumes: count by loop.batch,"
                " as in `if loop.batch == 99: break` at the end of the body.",
                type(holder).__name__,
            )


def length_of(loader: Any) -> int:
    """The number of batches of a loader that cannot be distributed.

    Raises:
        DeadlineError: It is unknown.
    """
    try:
        return len(loader)
    except TypeError:
        raise DeadlineError(
            "reports_per_epoch needs a loader with a length, and this one has none: leave it out,"
            " or train fewer batches in an epoch."
        ) from None
