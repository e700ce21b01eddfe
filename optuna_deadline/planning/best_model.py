"""The best model of a study: the best value with an intact checkpoint, else the best report."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from optuna_deadline.allocation.records import CheckpointOrigin
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint, intact
from optuna_deadline.checkpoints.sharing import is_here, reaches
from optuna_deadline.checkpoints.storage import Location, StoreAway
from optuna_deadline.planning.feasibility import INFEASIBLE, UNKNOWN
from optuna_deadline.planning.reading import BestReports
from optuna_deadline.values.scores import score

_logger = logging.getLogger("optuna_deadline")


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
