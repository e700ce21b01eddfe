"""How a study ends: the best verified model is COMPLETE, the rest PRUNED, no trial is RUNNING."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.planning.best_model import BestModel, kept_checkpoint
from optuna_deadline.planning.feasibility import none_feasible
from optuna_deadline.planning.pool_leader import batches
from optuna_deadline.planning.reading import BestReports, Reading
from optuna_deadline.planning.trials import Trials

_logger = logging.getLogger("optuna_deadline")

#: Round trips to Optuna's database for one end, approximately.
_ROUND_TRIPS_PER_END = 30
#: Share of the time for reporting ends that is added: a tick also does other work.
_REPORTING_SLACK = 2
#: The least time for an end, in intervals: ends are slower while the last ranks save.
_LEAST_PER_END = 0.1
#: Ends that Optuna stores before the table does: if this process dies, they are stored again.
_BATCH = 25

#: Ends of trials that do not win.
_LOST_STATES = ("retired", "failed")


class EndReporter:
    """Reports the ends of trials to Optuna, and the end of the best model's trial last.

    Optuna cannot undo an end. A retired or failed trial may still hold the best model through an
    earlier report; if it does when the study is over, it wins.

    Only the planner reports ends, and it may repeat them: after a crash between the writes to the
    two databases, the next planner reports the end again.

    Args:
        trials: The study's own record of its trials.
        table: The allocation table.
        best_model: The best model.
        clock: A monotonic clock in seconds.
        stay_elected: Called before each end, which may take long; raises LeaseLost if another
            planner reports ends now.
    """

    def __init__(
        self,
        trials: Trials,
        table: AllocationTable,
        best_model: BestModel,
        clock: Callable[[], float],
        stay_elected: Callable[[], None],
    ) -> None:
        self._trials = trials
        self._table = table
        self._best_model = best_model
        self._clock = clock
        self._stay_elected = stay_elected
        self._deferred: int | None = None
        self._check_again_at = 0.0
        self._seconds_per_end: float | None = None

    def report(self, rows: Iterable[PlannedTrial]) -> int:
        """Report all unreported ends, except the best model's; returns their number."""
        untold = [row for row in rows if not row.end_reported and not row.alive]
        return self._report([row for row in untold if not self._is_deferred(row)])

    def report_all(self, rows: Iterable[PlannedTrial]) -> int:
        """Report all ends, including the best model's, when the study is over.

        An enqueued configuration that never had a slot stays enqueued for an extension.
        """
        return self._report(
            [row for row in rows if not row.end_reported and not row.alive], over=True
        )

    def complete_winner(self, worker_id: str, term: int) -> None:
        """Make the best model's trial the winner, unless Optuna has it as PRUNED or FAIL.

        Args:
            worker_id: The planner.
            term: Its term.

        Raises:
            LeaseLost: Another term has begun.
        """
        rows = {row.number: row for row in self._table.trials()}
        lost = {
            number
            for number, row in rows.items()
            if row.end_reported and row.state in _LOST_STATES
        }
        while (winner := self._best_model.find(excluded=lost)) is not None:
            if not self._trials.ended_as_loser(rows[winner.number]):
                if not winner.feasible:
                    _logger.warning(none_feasible(winner.number))
                self._table.conclude(
                    worker_id, term, winner.number, "complete", "the best model", winner.value,
                    unreported=True,
                )  # fmt: skip
                return
            lost.add(winner.number)

    def seconds_per_end(self, round_trip: float) -> float:
        """Seconds to report one end, from recent measurements.

        Args:
            round_trip: Seconds of a round trip to the table, for an estimate before the first end.
        """
        return (
            _ROUND_TRIPS_PER_END * round_trip
            if self._seconds_per_end is None
            else self._seconds_per_end
        )

    def _report(self, ended: list[PlannedTrial], *, over: bool = False) -> int:
        began = self._clock()
        for first in range(0, len(ended), _BATCH):
            batch = ended[first : first + _BATCH]
            for row in batch:
                self._stay_elected()
                if over and row.fence == 0:
                    self._trials.drop(row.number)
                else:
                    self._trials.end(row, partial(self._table.reports, number=row.number))
                crashpoint("tell.after")
            self._table.mark_ends_reported(*[row.number for row in batch])
        if ended:
            self._seconds_per_end = (self._clock() - began) / len(ended)
        return len(ended)

    def _is_deferred(self, row: PlannedTrial) -> bool:
        """Whether a trial's end must wait; reads its file again if another trial may be better."""
        if row.state == "complete" or row.fence == 0:
            return False
        now, kept = self._clock(), row.number == self._deferred
        if kept and now < self._check_again_at:
            return True
        keeps = (
            kept and not self._best_model.has_rival(row.number)
        ) or self._best_model.belongs_to(row.number)
        if keeps:
            self._deferred, self._check_again_at = row.number, now + self._table.ttl
        return keeps


class StudyEnd:
    """Retires trials that can no longer be reported in time, and closes the study.

    Args:
        trials: The study's own record of its trials.
        table: The allocation table.
        worker_id: The planner.
        best_model: The best model.
        reporter: Reports the ends.
        interval: Seconds between two ticks of the planner, at most.
        keep_all: Whether all checkpoints stay, not only the best model's.
    """

    def __init__(
        self,
        trials: Trials,
        table: AllocationTable,
        worker_id: str,
        best_model: BestModel,
        reporter: EndReporter,
        *,
        interval: float,
        keep_all: bool,
    ) -> None:
        self._trials = trials
        self._table = table
        self._worker_id = worker_id
        self._best_model = best_model
        self._reporter = reporter
        self._interval = interval
        self._keep_all = keep_all

    def settle(self, term: int, reading: Reading, deadline: float) -> bool:
        """End every trial without a worker; close the study once no trial is left.

        Returns:
            Whether anything was written.
        """
        living = {worker.id for worker in reading.workers}
        alive = [row for row in reading.trials.values() if row.alive]
        if any(row.owner in living for row in alive):
            return False  # a trial that still holds its slots may produce a better model
        # If an owner has died, its trial is reaped soon.
        waiting = [row.number for row in alive if row.owner is None]
        self._reporter.complete_winner(self._worker_id, term)
        self._give_up(term, waiting)
        rows = self._table.trials()
        self._reporter.report_all(rows)
        if any(row.alive for row in rows):
            return True
        self._trials.end_strays({row.number for row in rows})
        kept = None if self._keep_all else kept_checkpoint(self._best_model.find())
        # unless a user has extended it since
        self._table.settle(self._worker_id, term, deadline, kept)
        return True

    def retire_excess(
        self,
        term: int,
        reading: Reading,
        closes_in: float,
        best_reports: BestReports,
        round_trip: float,
    ) -> bool:
        """Retire the worst waiting trials if too many wait to report all their ends in time.

        The next tick may be the last one that comes in time. Once running trials must stop, all
        but the best one retire. Returns whether any did.
        """
        waiting = [
            row.number
            for row in reading.trials.values()
            if row.alive and row.owner is None and (row.mode != "run" or closes_in <= 0)
        ]
        measured = _REPORTING_SLACK * self._reporter.seconds_per_end(round_trip)
        each = max(_LEAST_PER_END * self._interval, measured)
        left = closes_in - self._interval
        if len(waiting) < 2 or len(waiting) * each < left:
            return False
        excess = len(waiting) - 1 - (int(left / each) if left > 0 else 0)
        best = self._best_model.find()
        worst = best_reports.worst_first(waiting)
        losers = [number for number in worst if best is None or number != best.number]
        return excess > 0 and self._give_up(term, losers[:excess]) > 0

    def retire(self, term: int, reasons: Mapping[int, str]) -> int:
        """Retire trials; returns how many were alive."""
        parts = batches(sorted(reasons.items()))
        return sum([self._table.retire(self._worker_id, term, dict(part)) for part in parts])

    def _give_up(self, term: int, numbers: Iterable[int]) -> int:
        return self.retire(term, dict.fromkeys(numbers, "others were better"))
