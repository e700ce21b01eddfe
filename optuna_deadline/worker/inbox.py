"""What ranks say and ask, turned into ordered writes; only here is Optuna touched for them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial

from optuna_deadline.allocation.records import NewReport
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location, located
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.errors import StudyGone, at_most
from optuna_deadline.planning.optuna_storage import store_values, unless_deleted
from optuna_deadline.planning.sampling import Sampling
from optuna_deadline.worker.lease_clock import DATABASE_AWAY
from optuna_deadline.worker.segment import Gang, Rank, Verdict

_logger = logging.getLogger("optuna_deadline")


class Hearing:
    """Listens to the ranks of one gang.

    Args:
        table: The allocation table.
        me: The worker.
        gang: The segment.
        trial: Its Optuna trial, which lives here alone.
        sweep: Deletes files that no row names any more.
        sampling: Learns of the sampler's errors.
    """

    def __init__(
        self,
        table: AllocationStore,
        me: str,
        gang: Gang,
        trial: Trial,
        sweep: Callable[[int, Sequence[Location]], None],
        sampling: Sampling,
    ) -> None:
        self._sampling = sampling
        self._sweep = sweep
        self._table = table
        self._me = me
        self._gang = gang
        self._trial = trial
        storage = trial.study._storage
        with unless_deleted(trial.study):
            self._reported = set(storage.get_trial(trial._trial_id).intermediate_values)
        self._unsaved = False  # whether that was said already

    @property
    def silent(self) -> bool:
        """Whether the trial has never reported, in this segment or before."""
        return not self._reported

    def hear(self, rank: Rank, message: tuple[Any, ...]) -> None:
        """Take one message."""
        kind, *rest = message
        if kind == "end":
            rank.end, rank.ended_at = (rest[0], rest[1]), time.monotonic()
            self._gang.dismiss(rank)
        elif kind == "ask":
            number, method, args, kwargs = rest
            if method == "directive":
                rank_answer = self._gang.agree(args[0])
                self._gang.answer(rank, number, True, rank_answer)
            else:
                self._gang.backlog.add(lambda: self._ask(rank, number, method, args, kwargs))
        else:
            what, facts = rest
            getattr(self, f"_hear_{what}")(**facts)

    def _ask(
        self, rank: Rank, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            with unless_deleted(self._trial.study):
                found = getattr(self._trial, method)
                value = found(*args, **kwargs) if callable(found) else found
        except (StudyGone, *DATABASE_AWAY):
            raise
        except Exception as error:  # the user's own mistake: it belongs into the objective
            if method.startswith("suggest"):
                self._sampling.failed(self._gang.number, error)
            self._gang.answer(rank, number, False, error)
        else:
            self._gang.answer(rank, number, True, value)

    def _hear_progress(self, start: float, position: float, trained: float) -> None:
        progress = self._gang.progress
        if progress.startup is None:
            progress.startup = time.monotonic() - trained - self._gang.granted_at
        progress.start, progress.position, progress.trained = start, position, trained
        self._gang.progress_changed = True

    def _hear_horizon(self, last_step: int) -> None:
        self._gang.progress.horizon = last_step
        self._gang.progress_changed = True

    def _hear_even(self, batch: int) -> None:
        self._gang.progress.batch = batch
        self._gang.progress_changed = True

    def _hear_limit(self, slots: int, reason: str) -> None:
        gang = self._gang
        if gang.limit is None or slots < gang.limit[0]:  # the other ranks say the same
            gang.limit = slots, reason
            gang.backlog.add(self._write_limit)

    def _write_limit(self) -> None:
        assert self._gang.limit is not None
        self._table.limit_slots(self._me, self._gang.grant, *self._gang.limit)
        _logger.warning(
            "Trial %d trains on %s: %s", self._gang.number, at_most(self._gang.limit[0]),
            self._gang.limit[1],
        )  # fmt: skip

    def _hear_report(self, value: float, step: int, trained: float) -> None:
        self._gang.reported = True
        self._gang.backlog.add(NewReport(step, value, self._gang.trained_before + trained))

    def store(self, reports: Sequence[NewReport], checkpoints: Sequence[Checkpoint]) -> None:
        """Store reports and checkpoints in the table, and delete files that no row names now."""
        gang = self._gang
        if not checkpoints:
            self._table.add_reports(self._me, gang.grant, reports)
            return
        gone = self._table.add_checkpoint(self._me, gang.grant, *checkpoints, reports=reports)
        self._sweep(gang.number, gone)
        gang.saved, self._unsaved = True, False

    def copy(self, reports: Sequence[NewReport]) -> None:
        """Copy reports to Optuna, after the table has what plans are made by."""
        gang = self._gang
        values: dict[int, float] = {}
        for step, value, _ in reports:
            if step not in self._reported:  # redone after a crash: the first value stands
                values.setdefault(step, value)
        try:
            with unless_deleted(self._trial.study):
                store_values(self._trial.study._storage, self._trial._trial_id, values)
        except UpdateFinishedTrialError:
            _logger.warning(
                "Trial %d was finished by somebody else; its ranks are stopped.", gang.number
            )
            gang.verdict = Verdict("retired", "finished", failures=gang.failures)
            gang.kill()
        self._reported.update(values)
        self._sampling.worked(gang.number)
        for step, value, _ in reports:
            if math.isnan(value):
                _logger.warning(
                    "Trial %d reported NaN at step %d; it ranks last.", gang.number, step
                )

    def _hear_checkpoint(
        self, path: str, step: int, value: float | None, size: int, checksum: str
    ) -> None:
        new = Checkpoint(
            number=self._gang.number,
            fence=self._gang.grant.fence,
            step=step,
            value=value,
            path=located(path),
            size=size,
            checksum=checksum,
        )
        self._gang.backlog.add(new)

    def _hear_parked(self) -> None:
        self._gang.backlog.add(self._park)  # after what was said before

    def _hear_obeys(self) -> None:
        self._gang.obeys = True

    def _hear_waiting(self) -> None:
        """That it was heard at all is what counts."""

    def _park(self) -> None:
        self._gang.parked = True

    def _hear_leaving(self, why: str) -> None:
        """A further worker leaves: the whole gang does."""
        self._gang.hurried = True
        if not self._gang.directive.leave:
            self._gang.direct(Directive(Kind.PAUSE, why))

    def _hear_unsaved(self, step: int, why: str) -> None:
        if not self._unsaved:
            _logger.warning(
                "Trial %d could not save step %d (%s). It goes on, and if it is interrupted it"
                " goes on from the checkpoint before: make room, or see to the disk.",
                self._gang.number,
                step,
                why,
            )
        self._unsaved = True
