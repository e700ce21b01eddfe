"""Writes a gang's messages to the table in order, and releases its slots at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import LeaseLost, at_most
from optuna_deadline.worker.rules import FIRST_STOP
from optuna_deadline.worker.segment import Gang, Inbox
from optuna_deadline.worker.slot_health import SlotHealth
from optuna_deadline.worker.verdict import SegmentEnding, SegmentOutcome, WentWarm, decide_outcome
from optuna_deadline.worker.warm_processes import WarmProcesses

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
        self.slowest_stop = FIRST_STOP

    def flush(self, gang: Gang, *, leaving: bool) -> bool:
        """Write a gang's messages, or a part of them for one turn; the release comes last.

        Args:
            gang: The gang.
            leaving: Whether its worker was asked to leave.

        Returns:
            Whether all is written: the gang has exited or is warm, and holds nothing.
        """
        mailbox = gang.pending_writes
        if gang.inbox is None:
            return self._release_part(gang)
        try:
            self._write_backlog(gang.inbox, gang)
            self._write_progress(gang)
            if isinstance(mailbox.end, WentWarm) and not gang.lost:
                self._keep_warm(gang, mailbox.end)
                return True
        except LeaseLost:
            mailbox.clear()
            gang.lose()
        if not isinstance(mailbox.end, SegmentEnding):
            return False
        self._finish(gang, mailbox.end, leaving)
        return True

    def _release_part(self, gang: Gang) -> bool:
        """Release this worker's part of another one's gang, once its last rank has exited."""
        if gang.pending_writes.end is None:
            return False
        if not gang.lost:
            self._table.release_part(self._worker_id, *gang.key)
        return True

    def _write_backlog(self, inbox: Inbox, gang: Gang) -> None:
        until = time.monotonic() + _TURN_SECONDS
        if gang.pending_writes.write(inbox.store, inbox.copy_to_optuna, until):
            self._replan()

    def _write_progress(self, gang: Gang) -> None:
        """Write the progress if it has changed; if writes are slow, not each time.

        Plans then use the progress of some writes ago. The last one is written at the end.
        """
        began, progress = time.monotonic(), gang.progress
        is_due = began >= gang.progress_due or gang.pending_writes.end is not None
        if gang.lost or progress == gang.written_progress or not is_due:
            return
        self._table.set_progress(self._worker_id, gang.grant, **progress.fields())
        now = time.monotonic()
        gang.progress_due = now + max(_PROGRESS_SECONDS, 5 * (now - began))
        gang.written_progress = progress

    def _keep_warm(self, gang: Gang, end: WentWarm) -> None:
        """Release the slot of a process that stays warm; repeated after a database error."""
        self._note_stop(end.stop_seconds)
        if not self._table.release(
            self._worker_id, gang.grant, "paused", ended="warm", stop=end.stop_seconds, stays=True
        ):
            raise LeaseLost(f"Trial {gang.number} belongs to another worker.")
        self._warm.keep_warm(gang)
        self._replan()

    def _finish(self, gang: Gang, ending: SegmentEnding, leaving: bool) -> None:
        """Release a gang that has ended; repeated after a database error."""
        if gang.outcome is None:
            gang.outcome = self._decide_outcome(gang, ending)
        outcome = gang.outcome
        if not gang.lost:
            with suppress(LeaseLost):
                if outcome.slot_limit is not None:
                    self._table.limit_slots(self._worker_id, gang.grant, *outcome.slot_limit)
            shut_down = leaving and outcome.state == "paused"
            self._table.release(
                self._worker_id,
                gang.grant,
                outcome.state,
                ended="shutdown" if shut_down else outcome.end_reason,
                value=outcome.value,
                stop=ending.stop_seconds,
                failures=outcome.failures,
            )
        self._replan()

    def _decide_outcome(self, gang: Gang, ending: SegmentEnding) -> SegmentOutcome:
        verdict = decide_outcome(ending, lambda: self._largest_proven_size(gang))
        verdict = self._health.judge(ending, verdict)
        self._note_stop(ending.stop_seconds)
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
                ending.held_seconds,
            )
        return verdict

    def _largest_proven_size(self, gang: Gang) -> int:
        """The most slots on which the trial has trained steps before this segment."""
        rows = self._table.segments()
        return max([row.slots for row in rows if row.number == gang.number and row.stepped] + [0])

    def _note_stop(self, seconds: float | None) -> None:
        self.slowest_stop = max(self.slowest_stop, seconds or 0.0)
