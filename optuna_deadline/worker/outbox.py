"""From what ranks said to the table: in order, again where the database was away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.errors import LeaseLost, at_most
from optuna_deadline.worker.parking import Parking
from optuna_deadline.worker.segment import Gang, Verdict
from optuna_deadline.worker.verdicts import judge

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
