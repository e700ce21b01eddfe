"""Turns messages of ranks into ordered writes; the only module that uses Optuna for them."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial

from optuna_deadline._optuna import id_of_trial, storage_of
from optuna_deadline.allocation.records import NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location, name_of, parse_location
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.errors import StudyGone, at_most
from optuna_deadline.planning.optuna_storage import store_values, thinned, unless_deleted
from optuna_deadline.rank.messages import (
    Advanced,
    BatchSize,
    DirectiveQuestion,
    LastStep,
    Leaves,
    Left,
    Limited,
    Message,
    NotSaved,
    Obeys,
    Pausable,
    Pruned,
    Question,
    Raised,
    RegimeNamed,
    Reported,
    Returned,
    Saved,
    StaysWarm,
    Waits,
)
from optuna_deadline.worker.database_errors import (
    DATABASE_ERRORS,
    describe_database_error,
    is_outage,
)
from optuna_deadline.worker.outage import Outage
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.requests import requestable
from optuna_deadline.worker.sampling import SamplerTooSlow, TrialSampler
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.verdict import SegmentOutcome

_logger = logging.getLogger("optuna_deadline")


class TrialInbox:
    """Receives messages from the ranks of one gang.

    Args:
        table: The allocation table.
        worker_id: The worker.
        gang: The segment.
        trial: Its Optuna trial, which only this process uses.
        sweep: Deletes files that no row names.
        sampler: Samples the trial's parameters.
        saving: Whether checkpoints cannot be written, of all trials of the worker.
    """

    def __init__(
        self,
        table: AllocationTable,
        worker_id: str,
        gang: Gang,
        trial: Trial,
        sweep: Callable[[int, Sequence[Location]], None],
        sampler: TrialSampler,
        saving: Outage,
    ) -> None:
        self._sampler = sampler
        self._sweep = sweep
        self._table = table
        self._worker_id = worker_id
        self._gang = gang
        self._trial = trial
        storage = storage_of(trial.study)
        with unless_deleted(trial.study):
            self._reported = set(storage.get_trial(id_of_trial(trial)).intermediate_values)
        self._saving, self._warned_diverged = saving, False
        self._regime: str | None = None  # named since the last report
        self._unsampled = False  #: whether it ended before it had its parameters

    @property
    def never_reported(self) -> bool:
        """Whether the trial could have reported and never did, in this segment or before."""
        return not self._reported and not self._unsampled

    def receive(self, rank: Rank, message: Message) -> None:
        """Handle one message.

        Raises:
            ValueError: It is none of a rank.
        """
        gang, writes = self._gang, self._gang.pending_writes
        match message:
            case Reported():
                self._on_report(message)
            case Advanced():
                self._on_advanced(message)
            case Saved():
                self._on_saved(message)
            case NotSaved():
                self._on_not_saved(message)
            case DirectiveQuestion(number, call):
                gang.answer(rank, number, True, gang.directive_for_call(call))
            case Question():
                self._on_question(rank, message)
            case LastStep(step):
                gang.progress = replace(gang.progress, horizon=step)
            case BatchSize(size):
                gang.progress = replace(gang.progress, batch=size)
            case Pausable(pausable):
                # written before the report that follows: no plan pauses the trial in between
                gang.progress = replace(gang.progress, pausable=pausable)
                writes.add(self._write_progress)
            case RegimeNamed(name):
                self._regime = name
            case Limited(slots, reason):
                self._on_limited(slots, reason)
            case Obeys():
                gang.acknowledged = True
            case StaysWarm():
                gang.stay_warm()
            case Waits():
                pass  # the message itself shows that the rank is alive
            case Leaves(why):
                self._on_leaves(why)
            case Returned() | Left() | Pruned() | Raised():
                rank.end_message, rank.end_message_at = message, time.monotonic()
                gang.acknowledge_end(rank)
            case _:
                raise ValueError(f"A rank cannot send {message!r:.100}.")

    def _on_question(self, rank: Rank, asked: Question) -> None:
        if (found := requestable(self._trial, asked.method)) is None:
            refusal = AttributeError(f"A trial in a worker has no {asked.method!r}.")
            self._gang.answer(rank, asked.number, False, refusal)
        else:
            request = partial(found, *asked.args, **asked.kwargs)
            self._gang.pending_writes.add(
                lambda: self._answer_request(rank, asked.number, asked.method, request)
            )

    def _answer_request(
        self, rank: Rank, number: int, method: str, request: Callable[[], Any]
    ) -> None:

        def awaited() -> bool:
            return not rank.exited

        try:
            with unless_deleted(self._trial.study):
                sampled = method.startswith("suggest")
                value = self._sampler.call(request, awaited) if sampled else request()
        except StudyGone:
            raise
        except SamplerTooSlow:
            self._unsampled = True
        except Exception as error:  # a mistake in the objective, so the error is raised there
            if isinstance(error, DATABASE_ERRORS):
                if is_outage(error):
                    raise
                error = ValueError(f"{method}: {describe_database_error(error)}")
            if method.startswith("suggest"):
                self._sampler.errors.record_failure(self._gang.number, error)
            self._answer(rank, number, False, error)
        else:
            self._answer(rank, number, True, value)

    def _answer(self, rank: Rank, number: int, good: bool, value: Any) -> None:
        self._gang.call_soon(lambda: self._gang.answer(rank, number, good, value))

    def _on_advanced(self, message: Advanced) -> None:
        gang, startup = self._gang, self._gang.progress.startup
        if startup is None:
            startup = time.monotonic() - message.trained - gang.granted_at
        gang.progress = replace(
            gang.progress,
            startup=max(0.0, startup),  # negative where a rank was warm
            start=message.start,
            position=message.position,
            trained=message.trained,
            validated=message.validated,
            waited=message.waited,
        )

    def _write_progress(self) -> None:
        gang = self._gang
        self._table.set_progress(self._worker_id, gang.grant, **gang.progress.fields())

    def _on_limited(self, slots: int, reason: str) -> None:
        gang = self._gang
        if gang.slot_limit is None or slots < gang.slot_limit[0]:  # the other ranks send the same
            gang.slot_limit = slots, reason
            if gang.known_limit is None or slots < gang.known_limit:
                gang.pending_writes.add(lambda: self._write_limit(slots, reason))

    def _write_limit(self, slots: int, reason: str) -> None:
        self._table.limit_slots(self._worker_id, self._gang.grant, slots, reason)
        _logger.warning("Trial %d trains on %s: %s", self._gang.number, at_most(slots), reason)

    def _on_report(self, message: Reported) -> None:
        self._gang.reported = True
        trained = message.trained + self._gang.trained_before
        self._gang.pending_writes.add(
            NewReport(message.step, message.value, trained, self._regime)
        )
        self._regime = None

    def store(self, reports: Sequence[NewReport], checkpoints: Sequence[Checkpoint]) -> None:
        """Store reports and checkpoints in the table, and delete files that no row names now."""
        gang = self._gang
        if not checkpoints:
            self._table.add_reports(self._worker_id, gang.grant, reports)
            gang.unplanned = reports[-1].step, time.monotonic()
            return
        gone = self._table.add_checkpoint(
            self._worker_id, gang.grant, *checkpoints, reports=reports
        )
        # A slow rank may not have read the file yet; the trial's next segment deletes it.
        read = None if gang.resume is None else gang.resume.name
        self._sweep(gang.number, [one for one in gone if name_of(one) != read])
        if reports:
            gang.unplanned = reports[-1].step, time.monotonic()

    def copy_to_optuna(self, reports: Sequence[NewReport]) -> None:
        """Copy reports to Optuna, after the table has them for its plans.

        After the deadline, the planner copies what is missing when it ends the trial.
        """
        gang = self._gang
        values = thinned(reports, self._reported)
        try:
            with unless_deleted(self._trial.study):
                if not gang.directive.deadline:
                    store_values(storage_of(self._trial.study), id_of_trial(self._trial), values)
        except UpdateFinishedTrialError:
            _logger.warning(
                "Trial %d was finished outside of this worker; its ranks are stopped.", gang.number
            )
            gang.outcome = SegmentOutcome("retired", "finished", failures=gang.failures)
            gang.call_soon(gang.kill)
        self._reported.update(values)
        self._sampler.errors.record_success(gang.number)
        diverged = [report for report in reports if not math.isfinite(report.value)]
        if diverged and not self._warned_diverged:
            self._warned_diverged = True
            _logger.warning(
                "Trial %d reported %s at step %d; it is pruned.",
                gang.number,
                "NaN" if math.isnan(diverged[0].value) else diverged[0].value,
                diverged[0].step,
            )

    def _on_saved(self, message: Saved) -> None:
        new = Checkpoint(
            number=self._gang.number,
            fence=self._gang.grant.fence,
            step=message.step,
            value=message.value,
            path=parse_location(message.path),
            size=message.size,
            checksum=message.checksum,
        )
        self._gang.saved = True
        self._gang.pending_writes.add(new)
        if (seconds := self._saving.ends()) is not None:
            _logger.warning("Checkpoints can be saved again after %.0f s.", seconds)

    def _on_not_saved(self, message: NotSaved) -> None:
        if self._saving.begins(re.sub(r"'[^']*'", "", message.why)):  # without the file
            _logger.warning(
                "Trial %d could not save step %d (%s). Trials continue, and after an interruption "
                "they resume from the checkpoint before: free space, or check the disk.",
                self._gang.number,
                message.step,
                message.why,
            )

    def _on_leaves(self, why: str) -> None:
        """Another worker of the gang leaves, so the whole gang does."""
        self._gang.worker_leaving = True
        if not self._gang.directive.leave:
            self._gang.send_directive(Directive(Kind.PAUSE, why))
