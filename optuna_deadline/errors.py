"""What can go wrong, each with one sentence that says what to do."""

from __future__ import annotations


class DeadlineError(ValueError):
    """A request that cannot be carried out; the message says what to do instead."""


class DeadlineConflict(DeadlineError):
    """Two processes name different deadlines for one study."""


class UnsupportedStorage(DeadlineError):
    """The study's storage has no SQL table beside which ours could stand."""


class SchemaMismatch(DeadlineError):
    """The tables in the database belong to another version of the package."""


class SlotTaken(DeadlineError):
    """A live worker offers the device, or one that died so short a time ago that nobody knows."""


class LeaseLost(RuntimeError):
    """A fenced write was refused: the slots or the trial now belong to somebody else."""


class StudyGone(RuntimeError):
    """The study was deleted while workers ran."""
