"""Segments: stretches of a trial's training on a fixed set of slots, for the objective.

The same objective runs under ``study.optimize`` and under an elastic worker. :func:`segment`
provides what differs: the checkpoint to resume from, the folder to save to, and directives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from optuna_deadline.checkpoints.folders import FolderCheckpoints
from optuna_deadline.directives import KEEP, Directive
from optuna_deadline.errors import at_most

RUNS = "optuna_deadline:runs"  #: attribute of a trial: the runs of its loggers
MAX_REGIME = 40  #: characters of the name of a regime

_logger = logging.getLogger("optuna_deadline")


class SegmentEnd(BaseException):
    """Raised in a rank to leave its slots; not an error, so ``except Exception`` lets it pass."""

    def __init__(self, directive: Directive) -> None:
        super().__init__(f"{directive.kind.value}: {directive.reason}")
        self.directive = directive


@runtime_checkable
class Segment(Protocol):
    """The segment of one rank, and its messages to the worker; plain Optuna has none."""

    elastic: bool  #: False in plain Optuna, where slots never change
    rank: int
    world_size: int
    resume: Path | None  #: the verified checkpoint to resume from

    @property
    def fence(self) -> int:
        """Number of the segment; checkpoint names carry it."""

    @property
    def folder(self) -> Path:
        """The trial's checkpoint folder; it exists."""

    def newest(self) -> Directive:
        """The newest directive that has reached this rank; local, never waits."""

    def directive(self) -> Directive:
        """The directive in force; the n-th call returns the same on every rank."""

    def progress(self, position: float) -> None:
        """Report the progress in steps, with fractions; cheap enough for every batch."""
        return None

    def validated(self, seconds: float) -> None:
        """Count seconds as validation, where the status tells what the slots' time was used for.

        The integrations of Lightning, Keras and Hugging Face call it themselves.
        """
        return None

    def horizon(self, last_step: int) -> None:
        """Set the step at which the objective ends by itself."""
        return None

    def even(self, batch: int) -> None:
        """Require a number of slots that divides ``batch``, from the next plan on."""
        return None

    def regime(self, name: str) -> None:
        """Name what decides how long a step takes, such as ``"batch 128, bf16"``.

        A training whose name changes has another pace from its last report on: plans, and
        comparisons of gangs, then use what it trained since. Up to 40 printable characters.
        """
        return None

    def limit_slots(self, slots: int, reason: str) -> None:
        """Limit the trial to ``slots`` slots, from the next plan on.

        If it has more now, it saves, leaves and resumes on that many, as with any plan. To discard
        what it has trained, save nothing and call :meth:`leave` after this: the trial resumes
        from its last checkpoint. Any rank may call it.

        Args:
            slots: Maximum number of slots, from 1. A limit can only be lowered.
            reason: The reason in one sentence, which is displayed with the trial.
        """

    def keep_slots(self) -> None:
        """Ask that no further plan pauses or resizes the trial: it could not resume from here."""
        return None

    def publish(self, path: Path, *, step: int, value: float | None = None) -> None:
        """Make a finished, synced file in :attr:`folder` the trial's newest checkpoint.

        Args:
            path: The file; only rank 0's call counts. Workers never delete it.
            step: The last step it contains.
            value: The value that this very state reported, if it did.
        """
        return None

    def save(
        self,
        write: Callable[[Path], Any],
        *,
        step: int,
        value: float | None = None,
        name: str | None = None,
    ) -> Path | None:
        """Write a checkpoint atomically and publish it (rank 0 only).

        If the disk is full, read-only or missing, the worker logs it once and the trial
        continues; it would resume from the checkpoint before.

        Args:
            write: Writes the file at the given path; an ``OSError`` is an error of the disk.
            step: The last step it contains.
            value: The value that this very state reported, if it did.
            name: Name of the file, different for each saved state. None generates one, and workers
                delete such a file once newer and better ones are saved.

        Returns:
            The file, or None if it was not written.
        """
        return None

    def save_dir(self, *, step: int, value: float | None = None) -> AbstractContextManager[Path]:
        """A folder to fill in a ``with`` block; its content becomes the newest checkpoint.

        Use it where a framework saves to a folder. As with :meth:`save`, only rank 0's counts, and
        a trial in plain Optuna saves nothing. If the block raises an error, nothing is saved.

        Example:
            ```python
            with part.save_dir(step=epoch, value=accuracy) as folder:
                model.save_pretrained(folder)
            ```

        Args:
            step: The last step it contains.
            value: The value that this very state reported, if it did.
        """

    def resume_dir(self) -> Path | None:
        """The folder that :meth:`save_dir` saved, unpacked; None at the start of a trial.

        The ranks of a host share it, so only read it; workers delete it after the segment.
        """

    def leave(self, directive: Directive | None = None) -> NoReturn:
        """End the segment here: raises :class:`SegmentEnd`."""

    def keep_warm(self, asked_to_go: Callable[[], bool] = lambda: False) -> None:
        """Release the slot and wait here; returns in the trial's next segment.

        Call it after a directive with ``keep_warm``, once the newest state is saved and the
        process uses no device. If the trial resumes elsewhere or ends, the process ends in this
        call.

        Args:
            asked_to_go: Returns whether the process has to end instead of waiting.
        """
        return None


class WholeTrial(FolderCheckpoints, Segment):
    """The segment of a trial that plain Optuna runs from beginning to end; it saves nothing."""

    elastic = False
    rank = 0
    world_size = 1
    fence = 0
    resume: Path | None = None

    @property
    def folder(self) -> Path:
        """A plain trial has no checkpoint folder."""
        raise RuntimeError("Checkpoints are kept under an elastic worker only.")

    def newest(self) -> Directive:
        """A plain trial has no directives."""
        return KEEP

    def directive(self) -> Directive:
        """A plain trial has no directives."""
        return KEEP

    def limit_slots(self, slots: int, reason: str) -> None:
        """Log it: plain Optuna does not say how many devices a trial has."""
        _logger.warning("This trial trains on %s: %s", at_most(slots), reason)

    def leave(self, directive: Directive | None = None) -> NoReturn:
        """End the segment as :meth:`Segment.leave` does."""
        raise SegmentEnd(directive or KEEP)


def segment(trial: Any) -> Segment:
    """The segment in which ``trial`` runs: elastic under a worker, whole under plain Optuna.

    Args:
        trial: The trial that the objective was called with.
    """
    found = getattr(trial, "segment", None)
    return found if found is not None else WholeTrial()


def take_one_slot(part: Segment, reason: str) -> None:
    """Limit the trial to one slot, and leave a gang: it resumes on that slot.

    Args:
        part: The segment.
        reason: Why it trains in one process.
    """
    part.limit_slots(1, reason)
    if part.world_size > 1:
        part.leave()
