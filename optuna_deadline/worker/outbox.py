"""From what ranks said to the table: in order, again where the database was away.

From how a segment ended to what becomes of its trial.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.directives import Kind
from optuna_deadline.errors import DeadlineError, LeaseLost, at_most
from optuna_deadline.rank.link import UNTRUSTED
from optuna_deadline.worker.parking import Parking
from optuna_deadline.worker.segment import Gang, Verdict

#: A trial whose ranks died this often with no checkpoint between fails; before that it goes on.
MOST_DEATHS = 3

#: In the words of Python, CUDA and torch on the CPU. Memory may be there the next time,
#: so these count as deaths and not as the objective's mistake.
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "can't allocate memory", "out of memory")


_UNUSED = (
    "Some parameters have no part in the loss: leave them out of the model, or in Lightning pass"
    ' trainer_options(strategy="ddp_find_unused_parameters_true").'
)
#: What cannot be trained on several slots, by torch's and Lightning's words.
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
_OURS = f"{DeadlineError.__name__}: "

#: Signals of a process that has crashed by itself.
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)


def judge(gang: Gang, proven: Callable[[], int] = lambda: 0) -> Verdict:
    """Decide what becomes of a trial whose ranks have all exited.

    Training that is refused on several slots, or that crashes on more of them than it has ever
    trained a step on, fails no trial: that goes on from its checkpoint on as many as it had.

    Args:
        gang: Its segment.
        proven: Finds the most slots on which the trial has trained steps before.
    """
    verdict = _judge(gang)
    failed = verdict.state == "failed"
    if gang.size == 1 or not (failed or verdict.ended == "died"):
        return verdict
    if (refusal := _refusal(gang)) is not None:
        return _limited(1, refusal)
    crashed = failed or gang.hung or _crashed(gang)
    if not crashed or gang.stepped or gang.last_words()[0] == "result":
        return verdict
    before = proven()
    if before >= gang.size:
        return verdict
    what = verdict.words.partition("\n")[0].partition("; it ")[0].rstrip(".")
    limited = _limited(max(1, before), f"On {gang.size} slots {what}.")
    return replace(limited, words=verdict.words)


def _limited(slots: int, reason: str) -> Verdict:
    return Verdict("paused", "limit", limit=(slots, " ".join(reason.split())))


def _refusal(gang: Gang) -> str | None:
    """What a rank said that cannot be trained on several slots, in one sentence."""
    lines = [rank.end[1][0] for rank in gang.ranks if rank.end and rank.end[0] == "error"]
    for line in lines:
        if line.startswith(_OURS):
            return str(line.removeprefix(_OURS))
        for sign, sentence in _ONE_SLOT_ONLY.items():
            if sign in line:
                return sentence
    return None


def _crashed(gang: Gang) -> bool:
    """Whether a rank ended by a fault of its own, and not for want of memory or by a kill."""
    codes = {rank.exit_code for rank in gang.ranks if rank.end is None}
    return not codes.isdisjoint(_CRASHES)


def _judge(gang: Gang) -> Verdict:
    kind, payload = gang.last_words()
    told = gang.directive
    leaving = "deadline" if told.deadline else told.kind.value
    if kind == "result":
        return _judge_value(payload)
    if kind == "left" and gang.limit is not None and not told.leave:
        return Verdict("paused", "limit", failures=gang.failures)
    if kind == "left":
        return Verdict("retired" if leaving == "stop" else "paused", leaving)
    if kind == "pruned":
        # Out of time is no judgement: the trial may still hold the best model.
        return Verdict("paused", leaving) if told.deadline else Verdict("retired", "pruned")
    if kind == "error":
        line, trace = payload
        if "address already in use" in line.lower() or "EADDRINUSE" in line:
            return Verdict("paused", "port", failures=gang.failures)
        if any(sign in line for sign in OUT_OF_MEMORY):
            return _judge_death(gang, f"out of memory: {line}")
        return Verdict("failed", "error", words=f"the objective raised {line}\n{trace}")
    if told.leave:  # killed because it did not leave in time
        state = "retired" if told.kind is Kind.STOP and not told.deadline else "paused"
        return Verdict(state, leaving, failures=gang.failures)
    if kind == "absent":
        words = "a rank on another host did not come; can the hosts reach each other?"
        return Verdict("paused", "unmet", failures=gang.failures, words=words)
    if kind == "cut":
        return _judge_death(gang, "its connection to another host broke, or that host's rank did")
    if payload in (UNTRUSTED, -signal.SIGALRM):
        return Verdict("paused", "untrusted", failures=gang.failures)
    hung = f"no rank said anything for {gang.patience:g} s or more" if gang.hung else None
    return _judge_death(gang, hung or _cause(payload))


def _judge_death(gang: Gang, cause: str) -> Verdict:
    deaths = 1 if gang.saved else gang.failures + 1
    words = f"a rank died ({cause}), the {deaths}. time since it got further"
    if deaths >= MOST_DEATHS:
        return Verdict("failed", "died", failures=deaths, words=f"{words}; it is given up")
    return Verdict("paused", "died", failures=deaths, words=f"{words}; it goes on")


def _judge_value(value: float | None) -> Verdict:
    if value is None:
        return Verdict("failed", "error", words="the objective returned no value")
    if math.isnan(value):
        return Verdict("failed", "error", words="the objective returned NaN")
    return Verdict("complete", "complete", value=value)


def _cause(exit_code: int | None) -> str:
    if exit_code == -9:
        return "SIGKILL; often the machine was out of memory"
    if exit_code is not None and exit_code < 0:
        return f"signal {-exit_code}"
    return f"exit code {exit_code}"


#: Seconds for one gang's backlog, until the leases and the other gangs are looked at again.
_TURN = 0.5
#: Seconds between two writes of how far a segment has come: as often as is planned at most.
_PROGRESS = 0.5

_logger = logging.getLogger("optuna_deadline")


class Writing:
    """Writes down what a worker's gangs say, and gives their slots back at the end.

    Args:
        table: The allocation table.
        me: The worker.
        parking: Takes in processes that stay.
        replan: Called when something happened that the planner should see.

    Attributes:
        slowest_stop: Seconds that the slowest gang took to leave.
    """

    def __init__(
        self, table: AllocationStore, me: str, parking: Parking, replan: Callable[[], None]
    ) -> None:
        self._table = table
        self._me = me
        self._parking = parking
        self._replan = replan
        self.slowest_stop = 0.3

    def write(self, gang: Gang, *, leaving: bool) -> bool:
        """Write what a gang said, or a part that takes a turn; its last line is the release.

        Args:
            gang: The gang.
            leaving: Whether its worker was asked to leave.

        Returns:
            Whether that was all: the gang has exited, or is parked, and holds nothing.
        """
        try:
            self._write_backlog(gang)
            due = gang.parked or time.monotonic() >= gang.progress_due
            if gang.progress_changed and due and not gang.over:
                self._write_progress(gang)
            if gang.parked and not gang.over and not gang.lost:
                self._park(gang)
                return True
        except LeaseLost:
            gang.lost = True
            gang.backlog.clear()
            gang.kill()
        if not gang.over or gang.backlog or not all(rank.closed for rank in gang.ranks):
            return False
        if gang.lingers and not gang.lost:
            return False
        self._finish(gang, leaving)
        return True

    def _write_backlog(self, gang: Gang) -> None:
        listener = gang.listener
        assert listener is not None
        if gang.backlog.write(listener.store, listener.copy, time.monotonic() + _TURN):
            self._replan()

    def _write_progress(self, gang: Gang) -> None:
        """Where each write takes long, plans are made by what was so a few writes ago."""
        progress, began = gang.progress, time.monotonic()
        gang.progress_changed = False  # it may change again meanwhile
        try:
            self._table.set_progress(
                self._me,
                gang.grant,
                startup=progress.startup,
                position_from=progress.start,
                position_to=progress.position,
                trained=progress.trained,
                horizon=progress.horizon,
                batch=progress.batch,
            )
        except BaseException:
            gang.progress_changed = True
            raise
        now = time.monotonic()
        gang.progress_due = now + max(_PROGRESS, 5 * (now - began))

    def _park(self, gang: Gang) -> None:
        """Release the slot of a process that stays; called again where the database was away."""
        self._time_stop(gang)
        if not self._table.release(
            self._me, gang.grant, "paused", ended="park", stop=gang.stop_seconds, stays=True
        ):
            raise LeaseLost(f"Trial {gang.number} is somebody else's.")
        self._parking.take_in(gang)
        self._replan()

    def _finish(self, gang: Gang, leaving: bool) -> None:
        """Release a gang that has exited; called again where the database was away."""
        if gang.verdict is None:
            gang.verdict = self._judge(gang)
        if not gang.lost:
            with suppress(LeaseLost):
                if gang.progress_changed:
                    self._write_progress(gang)
                if gang.verdict.limit is not None:
                    self._table.limit_slots(self._me, gang.grant, *gang.verdict.limit)
            self._table.release(
                self._me,
                gang.grant,
                gang.verdict.state,
                ended="shutdown" if leaving else gang.verdict.ended,
                value=gang.verdict.value,
                stop=gang.stop_seconds,
                failures=gang.verdict.failures,
            )
        self._replan()

    def _judge(self, gang: Gang) -> Verdict:
        verdict = judge(gang, lambda: self._proven(gang))
        self._time_stop(gang)
        if verdict.words and not gang.lost:
            _logger.warning("Trial %d: %s", gang.number, verdict.words)
        if verdict.limit is not None and not gang.lost:
            slots, why = verdict.limit
            _logger.warning("Trial %d trains on %s: %s", gang.number, at_most(slots), why)
        if verdict.ended == "complete" and gang.silent:
            _logger.warning(
                "Trial %d never reported: call trial.report(value, step) in the objective, or "
                "nothing can be decided about it.",
                gang.number,
            )
        elif verdict.ended == "deadline" and gang.silent:
            _logger.warning(
                "Trial %d had not reported by the deadline, %.0f s after it was given its slots: "
                "call trial.report(value, step) in the objective, earlier than that.",
                gang.number,
                time.monotonic() - gang.granted_at,
            )
        return verdict

    def _proven(self, gang: Gang) -> int:
        """The most slots on which the trial has trained steps before this segment."""
        rows = self._table.segments()
        return max([row.slots for row in rows if row.number == gang.number and row.stepped] + [0])

    def _time_stop(self, gang: Gang) -> None:
        if gang.directed_at is not None:
            gang.stop_seconds = time.monotonic() - gang.directed_at
            self.slowest_stop = max(self.slowest_stop, gang.stop_seconds)
