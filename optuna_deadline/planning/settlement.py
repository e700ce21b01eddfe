"""How the study ends: the best verified model is COMPLETE, the rest PRUNED, none left RUNNING."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.records import CheckpointOrigin, PlannedTrial
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint, intact
from optuna_deadline.checkpoints.sharing import is_reachable, reaches
from optuna_deadline.checkpoints.storage import Location, StoreAway
from optuna_deadline.planning.reading import BestReports
from optuna_deadline.planning.trials import Trials

_logger = logging.getLogger("optuna_deadline")

#: To tell Optuna one end takes about so many round trips to its database.
_ROUND_TRIPS_PER_END = 30
#: Ends that Optuna stores before the table does: if this process dies, they are stored again.
_BATCH = 25

#: Ends that are not the winner's.
_LOST_STATES = ("retired", "failed")


@dataclass(frozen=True)
class Winner:
    """The best model in hand."""

    number: int
    value: float
    step: int
    checkpoint: Checkpoint | None  #: None where the objective saves none


def find_winner(
    table: AllocationStore,
    direction: str,
    is_intact: Callable[[Checkpoint], bool] = intact,
    excluded: Collection[int] = (),
    reports: BestReports | None = None,
) -> Winner | None:
    """The best value whose model is on disk, byte for byte; else the best report.

    Args:
        table: The allocation table.
        direction: "minimize" or "maximize".
        is_intact: Looks at a file.
        excluded: Trials that do not count.
        reports: The best of each trial, where they are known; else they are read.
    """
    sign = -1.0 if direction == "maximize" else 1.0
    saved = [
        checkpoint
        for checkpoint in table.checkpoints()
        if checkpoint.value is not None
        and not math.isnan(checkpoint.value)
        and checkpoint.number not in excluded
    ]
    while saved:
        checkpoint = min(saved, key=lambda c: (sign * (c.value or 0.0), c.number))
        if _is_available(checkpoint, is_intact):
            assert checkpoint.value is not None
            return Winner(checkpoint.number, checkpoint.value, checkpoint.step, checkpoint)
        _logger.warning(
            "The best checkpoint %s is damaged or missing; using the next one.", checkpoint.path
        )
        saved.remove(checkpoint)
    if reports is None:
        reports = BestReports(direction)
        reports.take(table.reports())
    best = reports.best(excluded)
    return None if best is None else Winner(best.number, best.value, best.step, None)


class CheckpointAvailability:
    """Whether a checkpoint is whole, as far as can be known from one host.

    What only other hosts reach was whole when it was kept, and is in hand unless all of them died.

    Args:
        table: The allocation table.
        host: The host's name.
        is_intact: Looks at a file.
    """

    def __init__(
        self, table: AllocationStore, host: str, is_intact: Callable[[Checkpoint], bool] = intact
    ) -> None:
        self._table = table
        self._host = host
        self._is_intact = is_intact

    def __call__(self, checkpoint: Checkpoint) -> bool:
        """See above."""
        if self._is_intact(checkpoint):
            return True
        home = self.remote_origin(checkpoint)
        if home is None:
            return False
        mine = [w for w in self._table.workers() if w.study_id == self._table.study_id]
        return home.state == "left" or any(reaches(worker, home) for worker in mine)

    def remote_origin(self, checkpoint: Checkpoint) -> CheckpointOrigin | None:
        """Where it is, if that is a place that this host is not known to reach."""
        homes = self._table.checkpoint_origins(number=checkpoint.number)
        home = next((home for home in homes if home.path == checkpoint.path), None)
        if home is None or home.store is None or home.host in (None, self._host):
            return None
        return None if is_reachable(home.store) else home


def _is_available(checkpoint: Checkpoint, is_intact: Callable[[Checkpoint], bool]) -> bool:
    """Whether a checkpoint is whole; one in a store that does not answer was, when it was kept."""
    try:
        return is_intact(checkpoint)
    except StoreAway as error:
        _logger.warning("The best checkpoint could not be read: %s.", error)
        return True


def best_saved(table: AllocationStore, direction: str, number: int) -> float | None:
    """The best value among one trial's checkpoints, damaged or not; None where it has none."""
    values = [
        checkpoint.value
        for checkpoint in table.checkpoints(number)
        if checkpoint.value is not None and not math.isnan(checkpoint.value)
    ]
    return (max if direction == "maximize" else min)(values, default=None)


class BestModel:
    """The best model in hand, asked for often and looked up only when that can change.

    To look it up means to read every checkpoint's row and the whole of the best one's file.

    Args:
        table: The allocation table.
        direction: "minimize" or "maximize".
        is_intact: Looks at a file.
        reports: The best report of each trial; without it they are read each time.
    """

    def __init__(
        self,
        table: AllocationStore,
        direction: str,
        is_intact: Callable[[Checkpoint], bool],
        reports: Callable[[], BestReports] | None = None,
    ) -> None:
        self._table = table
        self._direction = direction
        self._is_intact = is_intact
        self._reports = reports
        self._winner: Winner | None = None

    def find(self, excluded: Collection[int] = ()) -> Winner | None:
        """Look it up; see :func:`find_winner`."""
        reports = None if self._reports is None else self._reports()
        self._winner = find_winner(
            self._table, self._direction, self._is_intact, excluded, reports
        )
        return self._winner

    def belongs_to(self, number: int) -> bool:
        """Whether the best model in hand is this trial's."""
        if self._is_beaten(number):
            return False
        winner = self.find()
        return winner is not None and winner.number == number

    def _is_beaten(self, number: int) -> bool:
        """Whether another trial was seen to have a better model: what it saved or said stays."""
        known = self._winner
        if known is None or known.number == number:
            return False
        mine = best_saved(self._table, self._direction, number)
        if known.checkpoint is None:
            if mine is not None or self._reports is None:
                return False
            report = self._reports().of(number)
            mine = None if report is None else report.value
        return mine is None or self._better(known.value, mine)

    def has_rival(self, number: int) -> bool:
        """Whether rows name a better model than this trial's, the best so far; reads no file."""
        known = self._winner
        if known is None or known.number != number or self._reports is None:
            return True
        report = self._reports().best(without={number})
        if report is None or not self._better(report.value, known.value):
            return False
        return known.checkpoint is None or any(
            checkpoint.number != number
            and checkpoint.value is not None
            and self._better(checkpoint.value, known.value)
            for checkpoint in self._table.checkpoints()
        )

    def _better(self, one: float, other: float) -> bool:
        return one > other if self._direction == "maximize" else one < other


def superfluous(table: AllocationStore, best: Winner | None) -> list[Location]:
    """Checkpoints that are not needed once the study is over: all but the best model's.

    None is superfluous where the best model has no checkpoint that can be read.
    """
    if best is None or best.checkpoint is None:
        return []
    kept = best.checkpoint.path
    return [checkpoint.path for checkpoint in table.checkpoints() if checkpoint.path != kept]


class EndReporter:
    """Tells Optuna how trials ended, and the end of the best model's trial last.

    Optuna takes no end back. A trial that was given up or has failed may hold the best model, by a
    report that came before it left: should it hold it when the study is over, it is the winner.

    Done by the planner alone, and safe to repeat: a crash between the two databases' writes leaves
    the trial untold, and the next planner tells it.

    Args:
        trials: The study's own record of them.
        table: The allocation table.
        best_model: The best model in hand.
        clock: Seconds that only ever rise.
    """

    def __init__(
        self,
        trials: Trials,
        table: AllocationStore,
        best_model: BestModel,
        clock: Callable[[], float],
    ) -> None:
        self._trials = trials
        self._table = table
        self._best_model = best_model
        self._clock = clock
        self._deferred: int | None = None
        self._check_again_at = 0.0
        self._seconds_per_end: float | None = None

    def report(self, rows: Iterable[PlannedTrial]) -> int:
        """Tell every end that Optuna does not know, but the best model's; returns how many."""
        untold = [row for row in rows if not row.end_reported and not row.alive]
        return self._report([row for row in untold if not self._is_deferred(row)])

    def report_all(self, rows: Iterable[PlannedTrial]) -> int:
        """The same with the best model's, which has its end, when the study is over.

        What never had a slot was not tried: an enqueued configuration waits for an extension.
        """
        return self._report(
            [row for row in rows if not row.end_reported and not row.alive], over=True
        )

    def complete_winner(self, worker_id: str, term: int) -> None:
        """Make the best model's trial the winner, of those that have not lost by Optuna's record.

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
                self._table.conclude(
                    worker_id, term, winner.number, "complete", "the best model", winner.value,
                    unreported=True,
                )  # fmt: skip
                return
            lost.add(winner.number)

    def seconds_per_end(self, round_trip: float) -> float:
        """How long the telling of one end takes, as it was measured of late.

        Args:
            round_trip: Seconds of one of the table's, by which it is guessed before.
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
        """Whether a trial's end is kept; its file is read again where another may be better."""
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
