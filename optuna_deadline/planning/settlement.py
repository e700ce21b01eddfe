"""How a study ends: the best verified model is COMPLETE, the rest PRUNED, no trial is RUNNING."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.records import CheckpointOrigin, PlannedTrial
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint, intact
from optuna_deadline.checkpoints.sharing import is_here, reaches
from optuna_deadline.checkpoints.storage import Location, StoreAway
from optuna_deadline.planning.feasibility import INFEASIBLE, UNKNOWN, none_feasible
from optuna_deadline.planning.reading import BestReports
from optuna_deadline.planning.trials import Trials
from optuna_deadline.values.scores import score

_logger = logging.getLogger("optuna_deadline")

#: Round trips to Optuna's database for one end, approximately.
_ROUND_TRIPS_PER_END = 30
#: Ends that Optuna stores before the table does: if this process dies, they are stored again.
_BATCH = 25

#: Ends of trials that do not win.
_LOST_STATES = ("retired", "failed")


@dataclass(frozen=True)
class Winner:
    """The best model."""

    number: int
    value: float
    step: int
    checkpoint: Checkpoint | None  #: None if the objective saves no checkpoints
    feasible: bool = True  #: False if it violates a constraint, as all others do


def find_winner(
    table: AllocationTable,
    direction: str,
    is_intact: Callable[[Checkpoint], bool] = intact,
    excluded: Collection[int] = (),
    reports: BestReports | None = None,
    feasibility: Mapping[int, int] = MappingProxyType({}),
) -> Winner | None:
    """Find the best value with an intact checkpoint on disk, else the best report.

    A feasible trial comes before one of unknown feasibility, and an infeasible one last.

    Args:
        table: The allocation table.
        direction: "minimize" or "maximize".
        is_intact: Whether a checkpoint is intact.
        excluded: Trials to skip.
        reports: Best reports by trial; read from the table by default.
        feasibility: By trial, where it is known; see :mod:`optuna_deadline.planning.feasibility`.
    """
    saved = [
        checkpoint
        for checkpoint in table.checkpoints()
        if checkpoint.value is not None
        and not math.isnan(checkpoint.value)
        and checkpoint.number not in excluded
    ]
    for rank in sorted({UNKNOWN, *feasibility.values()}, reverse=True):

        def among(number: int, rank: int = rank) -> bool:
            return feasibility.get(number, UNKNOWN) == rank and number not in excluded

        best = _best_intact([one for one in saved if among(one.number)], direction, is_intact)
        if best is not None:
            return Winner(best.number, best.value or 0.0, best.step, best, rank != INFEASIBLE)
        if reports is None:
            reports = BestReports(direction)
            reports.take(table.reports())
        if (report := reports.best(among)) is not None:
            return Winner(report.number, report.value, report.step, None, rank != INFEASIBLE)
    return None


def _best_intact(
    saved: list[Checkpoint], direction: str, is_intact: Callable[[Checkpoint], bool]
) -> Checkpoint | None:
    for checkpoint in sorted(saved, key=lambda c: (-score(c.value or 0.0, direction), c.number)):
        if _is_available(checkpoint, is_intact):
            return checkpoint
        _logger.warning(
            "The best checkpoint %s is damaged or missing; using the next one.", checkpoint.path
        )
    return None


class CheckpointAvailability:
    """Whether a checkpoint is intact, as far as one host can check.

    A checkpoint that only other hosts reach was intact when it was saved. It counts as available
    unless all of these hosts have died.

    Args:
        table: The allocation table.
        host: The host's name.
        is_intact: Reads and checks a file.
    """

    def __init__(
        self, table: AllocationTable, host: str, is_intact: Callable[[Checkpoint], bool] = intact
    ) -> None:
        self._table = table
        self._host = host
        self._is_intact = is_intact

    def __call__(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint is available."""
        if self._is_intact(checkpoint):
            return True
        home = self.remote_origin(checkpoint)
        if home is None:
            return False
        mine = [w for w in self._table.workers() if w.study_id == self._table.study_id]
        return home.state == "left" or any(reaches(worker, home) for worker in mine)

    def remote_origin(self, checkpoint: Checkpoint) -> CheckpointOrigin | None:
        """The origin of a checkpoint that this host does not reach; None if it does."""
        homes = self._table.checkpoint_origins(number=checkpoint.number)
        home = next((home for home in homes if home.path == checkpoint.path), None)
        return None if is_here(home, self._host) else home


def _is_available(checkpoint: Checkpoint, is_intact: Callable[[Checkpoint], bool]) -> bool:
    """Whether a checkpoint is intact; one in a store that does not answer counts as intact."""
    try:
        return is_intact(checkpoint)
    except StoreAway as error:
        _logger.warning("The best checkpoint could not be read: %s.", error)
        return True


def best_saved(table: AllocationTable, direction: str, number: int) -> float | None:
    """The best saved value of one trial, damaged checkpoints included; None if it has none."""
    values = [
        checkpoint.value
        for checkpoint in table.checkpoints(number)
        if checkpoint.value is not None and not math.isnan(checkpoint.value)
    ]
    return max(values, key=lambda value: score(value, direction), default=None)


class BestModel:
    """Caches the best model and looks it up again only when it can have changed.

    A lookup reads every checkpoint's row and the whole file of the best one.

    Args:
        table: The allocation table.
        direction: "minimize" or "maximize".
        is_intact: Whether a checkpoint is intact.
        reports: Best reports by trial; without them, each lookup reads them.
        feasibility: Reads what is known of all trials, or of some.
    """

    def __init__(
        self,
        table: AllocationTable,
        direction: str,
        is_intact: Callable[[Checkpoint], bool],
        reports: Callable[[], BestReports] | None = None,
        feasibility: Callable[[Collection[int] | None], Mapping[int, int]] = lambda _: {},
    ) -> None:
        self._table = table
        self._feasibility = feasibility
        self._direction = direction
        self._is_intact = is_intact
        self._reports = reports
        self._winner: Winner | None = None
        self._constrained = False  #: whether anything was known of a constraint

    def find(self, excluded: Collection[int] = ()) -> Winner | None:
        """Look the best model up; see :func:`find_winner`."""
        reports = None if self._reports is None else self._reports()
        known = self._feasibility(None)
        self._winner = find_winner(
            self._table, self._direction, self._is_intact, excluded, reports, known
        )
        self._constrained = bool(known)
        return self._winner

    def belongs_to(self, number: int) -> bool:
        """Whether a trial has the best model."""
        if self._is_beaten(number):
            return False
        winner = self.find()
        return winner is not None and winner.number == number

    def _is_beaten(self, number: int) -> bool:
        """Whether another trial had a better model; its checkpoints and reports stay."""
        known = self._winner
        if known is None or known.number == number or self._feasibility({number, known.number}):
            return False
        mine = best_saved(self._table, self._direction, number)
        if known.checkpoint is None:
            if mine is not None or self._reports is None:
                return False
            report = self._reports().of(number)
            mine = None if report is None else report.value
        return mine is None or self._better(known.value, mine)

    def has_rival(self, number: int) -> bool:
        """Whether rows name a better model than that of this trial; reads no files."""
        known = self._winner
        if known is None or known.number != number or self._reports is None or self._constrained:
            return True
        report = self._reports().best(lambda other: other != number)
        if report is None or not self._better(report.value, known.value):
            return False
        return known.checkpoint is None or any(
            checkpoint.number != number
            and checkpoint.value is not None
            and self._better(checkpoint.value, known.value)
            for checkpoint in self._table.checkpoints()
        )

    def _better(self, one: float, other: float) -> bool:
        return score(one, self._direction) > score(other, self._direction)


def kept_checkpoint(best: Winner | None) -> Location | None:
    """The one checkpoint that stays after the study; None if none can be read: then all stay."""
    return None if best is None or best.checkpoint is None else best.checkpoint.path


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
