"""How the study ends: the best verified model is COMPLETE, the rest PRUNED, none left RUNNING."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from optuna_deadline.allocation.reach import reaches
from optuna_deadline.allocation.records import Desired, Home
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints import Checkpoint, intact
from optuna_deadline.crashpoints import crashpoint
from optuna_deadline.marks import seen_here
from optuna_deadline.planning.trials import Trials
from optuna_deadline.stores import StoreAway

_logger = logging.getLogger("optuna_deadline")


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
    whole: Callable[[Checkpoint], bool] = intact,
) -> Winner | None:
    """The best value whose model is on disk, byte for byte; else the best report."""
    sign = -1.0 if direction == "maximize" else 1.0
    saved = [
        checkpoint
        for checkpoint in table.checkpoints()
        if checkpoint.value is not None and not math.isnan(checkpoint.value)
    ]
    while saved:
        checkpoint = min(saved, key=lambda c: (sign * (c.value or 0.0), c.number))
        if _holds(checkpoint, whole):
            assert checkpoint.value is not None
            return Winner(checkpoint.number, checkpoint.value, checkpoint.step, checkpoint)
        _logger.warning(
            "The best checkpoint %s is damaged or gone; taking the next.", checkpoint.path
        )
        saved.remove(checkpoint)
    reported = [
        (sign * row.value, row.number, row.step, row.value)
        for row in table.reports()
        if not math.isnan(row.value)
    ]
    if not reported:
        return None
    _, number, step, value = min(reported)
    return Winner(number, value, step, None)


class InHand:
    """Whether a checkpoint is whole, as far as can be known from one host.

    What only other hosts reach was whole when it was kept, and is in hand unless all of them died.

    Args:
        table: The allocation table.
        host: The host's name.
        whole: Looks at a file.
    """

    def __init__(
        self, table: AllocationStore, host: str, whole: Callable[[Checkpoint], bool] = intact
    ) -> None:
        self._table = table
        self._host = host
        self._whole = whole

    def __call__(self, checkpoint: Checkpoint) -> bool:
        """See above."""
        if self._whole(checkpoint):
            return True
        home = self.elsewhere(checkpoint)
        if home is None:
            return False
        mine = [w for w in self._table.workers() if w.study_id == self._table.study_id]
        return home.state == "left" or any(reaches(worker, home) for worker in mine)

    def elsewhere(self, checkpoint: Checkpoint) -> Home | None:
        """Where it is, if that is a place that this host is not known to reach."""
        homes = self._table.homes(number=checkpoint.number)
        home = next((home for home in homes if home.path == checkpoint.path), None)
        if home is None or home.store is None or home.host in (None, self._host):
            return None
        return None if seen_here(home.store) else home


def _holds(checkpoint: Checkpoint, whole: Callable[[Checkpoint], bool]) -> bool:
    """Whether a checkpoint is whole; one in a store that does not answer was, when it was kept."""
    try:
        return whole(checkpoint)
    except StoreAway as error:
        _logger.warning("The best checkpoint could not be looked at: %s.", error)
        return True


def best_saved(table: AllocationStore, direction: str, number: int) -> float | None:
    """The best value among one trial's checkpoints, damaged or not; None where it has none."""
    values = [
        checkpoint.value
        for checkpoint in table.checkpoints(number)
        if checkpoint.value is not None and not math.isnan(checkpoint.value)
    ]
    return (max if direction == "maximize" else min)(values, default=None)


class Champion:
    """The best model in hand, asked for often and looked up only when that can change.

    To look it up means to read every checkpoint's row and the whole of the best one's file.
    """

    def __init__(
        self, table: AllocationStore, direction: str, whole: Callable[[Checkpoint], bool]
    ) -> None:
        self._table = table
        self._direction = direction
        self._whole = whole
        self._known: Winner | None = None

    def find(self) -> Winner | None:
        """Look it up; see :func:`find_winner`."""
        self._known = find_winner(self._table, self._direction, self._whole)
        return self._known

    def is_(self, number: int) -> bool:
        """Whether the best model in hand is this trial's."""
        if self._beaten(number):
            return False
        winner = self.find()
        return winner is not None and winner.number == number

    def _beaten(self, number: int) -> bool:
        """Whether another trial was seen to have a better model: its checkpoint stays."""
        known = self._known
        if known is None or known.checkpoint is None or known.number == number:
            return False
        mine = best_saved(self._table, self._direction, number)
        if mine is None:
            return True
        return mine < known.value if self._direction == "maximize" else mine > known.value


def tell(trials: Trials, table: AllocationStore, lines: Sequence[Desired]) -> int:
    """Tell Optuna the end of every trial that it does not know; returns how many.

    Done by the planner alone, and safe to repeat: a crash between the two databases' writes leaves
    the trial untold, and the next planner tells it.
    """
    ended = [line for line in lines if not line.told and not line.alive]
    for line in ended:
        trials.end(line, partial(table.reports, number=line.number))
        crashpoint("tell.after")
        table.mark_told(line.number)
    return len(ended)
