"""Exceptions; each message says in one sentence what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optuna_deadline._numbers import is_count

_commanded = False


__all__ = [
    "DatabaseGone",
    "DeadlineConflict",
    "DeadlineError",
    "DeadlinePassed",
    "LeaseLost",
    "SchemaMismatch",
    "SlotTaken",
    "StudyGone",
    "UnsupportedStorage",
]


class DeadlineError(ValueError):
    """A request that cannot be carried out; the message says what to do instead."""


class DeadlineConflict(DeadlineError):
    """Two processes name different deadlines for one study."""


class DeadlinePassed(DeadlineError):
    """The study's deadline has passed."""


class UnsupportedStorage(DeadlineError):
    """The study's storage is not SQL, so it cannot hold the allocation table."""


class SchemaMismatch(DeadlineError):
    """The tables of the database were created by an incompatible version."""


class SlotTaken(DeadlineError):
    """A live worker offers the device, or one that may just have died."""


class LeaseLost(RuntimeError):
    """A fenced write was refused: the slots or the trial belong to another worker now."""


class StudyGone(RuntimeError):
    """The study was deleted while workers ran."""

    @classmethod
    def named(cls, name: str) -> StudyGone:
        """The error for a study with this name."""
        return cls(f"The study {name!r} was deleted; create it again.")


class DatabaseGone(RuntimeError):
    """The database did not answer when a worker had to leave."""


@contextmanager
def on_command_line() -> Iterator[None]:
    """Make errors of this process name options and commands until the block ends."""
    global _commanded
    before, _commanded = _commanded, True
    try:
        yield
    finally:
        _commanded = before


def spelled(python: str, command: str) -> str:
    """Select the form that an error message shows: for Python, or for the command line.

    Args:
        python: An argument or a call, such as ``extend=True``.
        command: An option or a command, such as ``--extend``.
    """
    return command if _commanded else python


def argument(name: str) -> str:
    """The name of an argument, or of its option if a command runs."""
    return spelled(name, f"--{name.replace('_', '-')}")


def check_counts(**given: object) -> None:
    """Check that numbers are whole ones from 1.

    Raises:
        DeadlineError: One is not; the message names it.
    """
    for name, value in given.items():
        if not is_count(value, 1):
            raise DeadlineError(f"{name} must be a whole number from 1, but got {value!r}.")


def at_most(slots: int) -> str:
    """A trial's limit in words: "one slot only", "2 slots at most".

    Raises:
        DeadlineError: It is not a positive whole number.
    """
    if not is_count(slots, 1):
        raise DeadlineError(f"Limit a trial to a whole number of slots from 1, not {slots!r}.")
    return "one slot only" if slots == 1 else f"{slots} slots at most"
