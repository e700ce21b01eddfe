"""Decides the outcome of an ended segment and writes a gang's messages to the table in order."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from optuna_deadline._printable import Lines
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.directives import Kind
from optuna_deadline.errors import DeadlineError, LeaseLost, at_most
from optuna_deadline.rank.link import LEASE_EXPIRED_EXIT_CODE
from optuna_deadline.worker.segment import Gang, SegmentOutcome
from optuna_deadline.worker.slot_health import DEVICE_ERRORS, START_ERRORS, SlotHealth
from optuna_deadline.worker.warm_processes import WarmProcesses

#: A trial fails once its ranks died this often without a new checkpoint; before that it resumes.
MAX_DEATHS = 3

#: Messages of Python, CUDA and torch for missing memory, which may be free at the next try:
#: these count as deaths and not as errors of the objective.
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "can't allocate memory", "out of memory")
#: The same for the user's limit of processes and threads.
_AT_LIMIT = ("can't start new thread", "[Errno 11] Resource temporarily unavailable")
_AS_DEATHS = (
    (OUT_OF_MEMORY, "out of memory"),
    ((*DEVICE_ERRORS, *START_ERRORS), "its device failed"),
    (_AT_LIMIT, "no more processes or threads"),
)

_UNUSED = (
    "Some parameters have no part in the loss: leave them out of the model, or in Lightning pass"
    ' trainer_options(strategy="ddp_find_unused_parameters_true").'
)
#: Messages of torch and Lightning for training that does not work on several slots.
_ONE_SLOT_ONLY = {
    "Expected more than 1 value per channel when training": (
        "BatchNorm needs two samples or more on each slot, and its share of a batch is one: pass"
        " drop_last=True to the training loader, or a batch size that leaves a larger last batch."
    ),
    "SyncBatchNorm layers only work with GPU modules": (
        "SyncBatchNorm works on GPUs only: leave sync_batchnorm=True out where slots are CPUs."
    ),
    "Expected to have finished reduction in the prior iteration": _UNUSED,
    "parameters that were not used in producing the loss": _UNUSED,
}
_OWN_ERROR_PREFIX = f"{DeadlineError.__name__}: "

#: Signals of a process that crashes.
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)


def decide_outcome(
    gang: Gang, largest_proven_size: Callable[[], int] = lambda: 0
) -> SegmentOutcome:
    """Decide the outcome of a trial whose ranks have all exited.

    Training that is refused on several slots, or that crashes on more slots than it has ever
    trained on, does not fail the trial: it resumes from its checkpoint on fewer slots.

    Args:
        gang: Its segment.
        largest_proven_size: Finds the most slots on which the trial has trained steps before.
    """
    verdict = _outcome_of(gang)
    failed = verdict.state == "failed"
    if gang.size == 1 or not (failed or verdict.end_reason == "died"):
        return verdict
    if (refusal := _refusal(gang)) is not None:
        return _limited_outcome(1, refusal)
    crashed = failed or gang.hung or _crashed(gang)
    if not crashed or gang.stepped or gang.end_message()[0] == "result":
        return verdict
    before = largest_proven_size()
    if before >= gang.size:
        return verdict
    what = verdict.log_message.partition("\n")[0].partition("; it ")[0].rstrip(".")
    limited = _limited_outcome(max(1, before), f"On {gang.size} slots {what}.")
    return replace(limited, log_message=verdict.log_message)


def _limited_outcome(slots: int, reason: str) -> SegmentOutcome:
    return SegmentOutcome("paused", "limit", slot_limit=(slots, " ".join(reason.split())))


def _refusal(gang: Gang) -> str | None:
    """Why a rank refused to train on several slots, in one sentence."""
    lines = [
        rank.end_message[1][0]
        for rank in gang.ranks
        if rank.end_message and rank.end_message[0] == "error"
    ]
    for line in lines:
        if line.startswith(_OWN_ERROR_PREFIX):
            return str(line.removeprefix(_OWN_ERROR_PREFIX))
        for sign, sentence in _ONE_SLOT_ONLY.items():
            if sign in line:
                return sentence
    return None


def _crashed(gang: Gang) -> bool:
    """Whether a rank crashed by itself, not for missing memory or by a kill."""
    codes = {rank.exit_code for rank in gang.ranks if rank.end_message is None}
    return not codes.isdisjoint(_CRASHES)


def _outcome_of(gang: Gang) -> SegmentOutcome:
    kind, payload = gang.end_message()
    sent = gang.directive
    leaving = "deadline" if sent.deadline else sent.kind.value
    if kind == "result":
        return _outcome_of_value(payload)
    if kind == "left" and gang.slot_limit is not None and not sent.leave:
        return SegmentOutcome("paused", "limit", failures=gang.failures)
    if kind == "left":
        return SegmentOutcome("retired" if leaving == "stop" else "paused", leaving)
    if kind == "pruned":
        # A trial out of time is not bad: it may still hold the best model.
        return (
            SegmentOutcome("paused", leaving)
            if sent.deadline
            else SegmentOutcome("retired", "pruned")
        )
    if kind == "error":
        line, trace = payload
        if "address already in use" in line.lower() or "EADDRINUSE" in line:
            return SegmentOutcome("paused", "port", failures=gang.failures)
        for signs, cause in _AS_DEATHS:
            if any(sign in line for sign in signs):
                return _outcome_of_death(gang, f"{cause}: {line}")
        return SegmentOutcome(
            "failed", "error", log_message=Lines(f"the objective raised {line}\n{trace}")
        )
    if sent.leave:  # killed because it did not leave in time
        state = "retired" if sent.kind is Kind.STOP and not sent.deadline else "paused"
        return SegmentOutcome(state, leaving, failures=gang.failures)
    if kind == "absent":
        words = "a rank on another host did not come; can the hosts reach each other?"
        return SegmentOutcome("paused", "unmet", failures=gang.failures, log_message=words)
    if kind == "cut":
        return _outcome_of_death(
            gang, "its connection to another host broke, or that host's rank died"
        )
    if payload in (LEASE_EXPIRED_EXIT_CODE, -signal.SIGALRM):
        return SegmentOutcome("paused", "untrusted", failures=gang.failures)
    hung = f"no rank sent a message for {gang.hang_timeout:g} s or more" if gang.hung else None
    return _outcome_of_death(gang, hung or _describe_exit_code(payload))


def _outcome_of_death(gang: Gang, cause: str) -> SegmentOutcome:
    deaths = 1 if gang.saved else gang.failures + 1
    words = f"a rank died ({cause}), {deaths} in a row without a new checkpoint"
    if deaths >= MAX_DEATHS:
        return SegmentOutcome("failed", "died", failures=deaths, log_message=f"{words}; it fails")
    return SegmentOutcome("paused", "died", failures=deaths, log_message=f"{words}; it resumes")


def _outcome_of_value(value: float | None) -> SegmentOutcome:
    if value is None:
        return SegmentOutcome("failed", "error", log_message="the objective returned no value")
    if math.isnan(value):
        return SegmentOutcome("failed", "error", log_message="the objective returned NaN")
    return SegmentOutcome("complete", "complete", value=value)


def _describe_exit_code(exit_code: int | None) -> str:
    if exit_code == -9:
        return "SIGKILL; often the machine was out of memory"
    if exit_code is not None and exit_code < 0:
        return f"signal {-exit_code}"
    return f"exit code {exit_code}"


#: Seconds for one gang's backlog before the leases and the other gangs have their turn.
_TURN_SECONDS = 0.5
#: Seconds between two writes of a segment's progress; planning is not more frequent.
_PROGRESS_SECONDS = 0.5

_logger = logging.getLogger("optuna_deadline")


class Outbox:
    """Writes a worker's gangs to the table and releases their slots at the end.

    Args:
        table: The allocation table.
        worker_id: The worker.
        warm: Keeps processes that stay.
        replan: Called after events that the planner should read.
        health: Judges the slots.

    Attributes:
        slowest_stop: Seconds that the slowest gang took to leave.
    """

    def __init__(
        self,
        table: AllocationTable,
        worker_id: str,
        warm: WarmProcesses,
        replan: Callable[[], None],
        health: SlotHealth,
    ) -> None:
        self._table = table
        self._health = health
        self._worker_id = worker_id
        self._warm = warm
        self._replan = replan
        self.slowest_stop = 0.3

    def flush(self, gang: Gang, *, leaving: bool) -> bool:
        """Write a gang's messages, or a part of them for one turn; the release comes last.

        Args:
            gang: The gang.
            leaving: Whether its worker was asked to leave.

        Returns:
            Whether all is written: the gang has exited or is warm, and holds nothing.
        """
        # Before the write: a message that arrives before the pipe closes is not written yet.
        closed = all(rank.closed for rank in gang.ranks)
        try:
            self._write_backlog(gang)
            due = gang.warm or time.monotonic() >= gang.progress_due
            if gang.progress_changed and due and not gang.exited:
                self._write_progress(gang)
            if gang.warm and not gang.exited and not gang.lost:
                self._keep_warm(gang)
                return True
        except LeaseLost:
            gang.lost = True
            gang.pending_writes.clear()
            gang.kill()
        if not gang.exited or gang.pending_writes or not closed:
            return False
        if gang.remote_ranks_may_run and not gang.lost:
            return False
        self._finish(gang, leaving)
        return True

    def _write_backlog(self, gang: Gang) -> None:
        listener = gang.inbox
        assert listener is not None
        if gang.pending_writes.write(
            listener.store, listener.copy_to_optuna, time.monotonic() + _TURN_SECONDS
        ):
            self._replan()

    def _write_progress(self, gang: Gang) -> None:
        """Write the progress; if writes are slow, plans use the progress of some writes ago."""
        progress, began = gang.progress, time.monotonic()
        gang.progress_changed = False  # it may change in between
        try:
            self._table.set_progress(self._worker_id, gang.grant, **progress.fields())
        except BaseException:
            gang.progress_changed = True
            raise
        now = time.monotonic()
        gang.progress_due = now + max(_PROGRESS_SECONDS, 5 * (now - began))

    def _keep_warm(self, gang: Gang) -> None:
        """Release the slot of a process that stays warm; repeated after a database error."""
        self._measure_stop(gang)
        if not self._table.release(
            self._worker_id, gang.grant, "paused", ended="warm", stop=gang.stop_seconds, stays=True
        ):
            raise LeaseLost(f"Trial {gang.number} belongs to another worker.")
        self._warm.keep_warm(gang)
        self._replan()

    def _finish(self, gang: Gang, leaving: bool) -> None:
        """Release a gang that has exited; repeated after a database error."""
        if gang.outcome is None:
            gang.outcome = self._decide_outcome(gang)
        if not gang.lost:
            with suppress(LeaseLost):
                if gang.progress_changed:
                    self._write_progress(gang)
                if gang.outcome.slot_limit is not None:
                    self._table.limit_slots(self._worker_id, gang.grant, *gang.outcome.slot_limit)
            self._table.release(
                self._worker_id,
                gang.grant,
                gang.outcome.state,
                ended=(
                    "shutdown"
                    if leaving and gang.outcome.state == "paused"
                    else gang.outcome.end_reason
                ),
                value=gang.outcome.value,
                stop=gang.stop_seconds,
                failures=gang.outcome.failures,
            )
        self._replan()

    def _decide_outcome(self, gang: Gang) -> SegmentOutcome:
        verdict = decide_outcome(gang, lambda: self._largest_proven_size(gang))
        verdict = self._health.judge(gang, verdict)
        self._measure_stop(gang)
        if verdict.log_message and not gang.lost:
            _logger.warning("Trial %d: %s", gang.number, verdict.log_message)
        if verdict.slot_limit is not None and not gang.lost:
            slots, why = verdict.slot_limit
            _logger.warning("Trial %d trains on %s: %s", gang.number, at_most(slots), why)
        if verdict.end_reason == "complete" and gang.never_reported:
            _logger.warning(
                "Trial %d never reported: call trial.report(value, step) in the objective, or "
                "nothing can be decided about it.",
                gang.number,
            )
        elif verdict.end_reason == "deadline" and gang.never_reported:
            _logger.warning(
                "Trial %d had not reported by the deadline, %.0f s after it got its slots: "
                "call trial.report(value, step) in the objective before that.",
                gang.number,
                time.monotonic() - gang.granted_at,
            )
        return verdict

    def _largest_proven_size(self, gang: Gang) -> int:
        """The most slots on which the trial has trained steps before this segment."""
        rows = self._table.segments()
        return max([row.slots for row in rows if row.number == gang.number and row.stepped] + [0])

    def _measure_stop(self, gang: Gang) -> None:
        if gang.directive_sent_at is not None:
            gang.stop_seconds = gang.left_at - gang.directive_sent_at
            self.slowest_stop = max(self.slowest_stop, gang.stop_seconds)
