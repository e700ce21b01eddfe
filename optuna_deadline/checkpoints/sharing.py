"""Which hosts share a checkpoint store: the first one leaves a mark in its folder."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from optuna_deadline.checkpoints.private import make_private
from optuna_deadline.checkpoints.storage import Location

_MARK = ".optuna-deadline-store"
_PATIENCE = 5.0  # seconds in which the process that created the mark writes it


def store_of(root: Location, machine: str) -> str:
    """A name of the checkpoint store, equal for all workers that share it.

    The path is a part of it, because checkpoints are found by path. A folder that cannot be
    written to has no mark, and counts as the host's own.

    Args:
        root: The folder, created if it does not exist, or a URL, which is its own name.
        machine: The machine's id.

    Raises:
        DeadlineError: See :func:`~optuna_deadline.checkpoints.private.make_private`.
    """
    if not isinstance(root, Path):
        return root
    try:
        make_private(root)
        return f"{_mark(root / _MARK)}:{root}"
    except OSError:
        return f"{machine}:{root}"


def is_reachable(store: str) -> bool:
    """Whether this host reaches a checkpoint store, by its name."""
    if "://" in store:
        return True
    mark, _, root = store.partition(":")
    with suppress(OSError):
        return (Path(root) / _MARK).read_text().strip() == mark
    return False


def is_here(home: CheckpointPlace | None, host: str) -> bool:
    """Whether a host reads files of an origin; one that is unknown counts as read here.

    Args:
        home: Where the files were written.
        host: The name of this host.
    """
    if home is None or home.store is None or home.host in (None, host):
        return True
    return is_reachable(home.store)


def _mark(file: Path) -> str:
    """Create the mark or read it: of many hosts at once, one creates it."""
    mine = uuid.uuid4().hex
    with suppress(FileExistsError):
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as made:
            made.write(mine)
            made.flush()
            os.fsync(made.fileno())
        return mine
    until = time.monotonic() + _PATIENCE
    while not (found := file.read_text().strip()):
        if time.monotonic() > until:  # its process died before it wrote
            file.write_text(mine)
        time.sleep(0.05)
    return found


class CheckpointPlace(Protocol):
    """A host and its checkpoint store: a worker's, or a checkpoint's own."""

    @property
    def host(self) -> str | None:
        """The host's name."""

    @property
    def store(self) -> str | None:
        """As in :class:`~optuna_deadline.allocation.records.MachineInfo`."""


def reaches(reader: CheckpointPlace, origin: CheckpointPlace) -> bool:
    """Whether a worker with one store can read files of another one.

    Every host can read a URL; one host can read its own folders; the hosts of a shared folder can
    read it. An unknown store counts as readable.
    """
    if origin.host is None or origin.store is None or reader.store is None:
        return True
    return "://" in origin.store or reader.host == origin.host or reader.store == origin.store
