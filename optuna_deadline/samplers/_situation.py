"""The time that a study has left, and how fast its trials train, as far as a sampler can know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_deadline.allocation.sql.database.engine import autocommit, opened
from optuna_deadline.allocation.sql.reads import pools_of
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.forecasting.reporting import step_before_all
from optuna_deadline.history.paces import measure
from optuna_deadline.study import terms as study_terms


@dataclass(frozen=True)
class Situation:
    """What a new trial meets.

    Attributes:
        left: Seconds until the deadline, infinite where there is none.
        horizon: Steps of a whole training, None where nobody has said.
        step_seconds: By trial, of a step on one slot.
    """

    left: float
    horizon: int | None
    step_seconds: Mapping[int, float]


#: How a sampler learns of the situation, from a study and its trials.
Look = Callable[[Study, Sequence[FrozenTrial]], Situation]


class TableLook:
    """Reads the table, if this process uses one; a study without has no deadline.

    Elastic trials wait and change their slots, so their paces are those of their segments; those
    of plain ones are told by their dates.

    Args:
        table: The database of the allocation table, where the study's storage is not SQL.
    """

    def __init__(self, table: str | None = None) -> None:
        self._table = table

    def __call__(self, study: Study, trials: Sequence[FrozenTrial]) -> Situation:
        """Three statements, whatever the number of trials."""
        engine = opened(study, self._table)
        terms = None if engine is None else study_terms.read(engine, study)
        if engine is None or terms is None:
            return Situation(math.inf, None, by_dates(trials, datetime.now()))
        with autocommit(engine) as connection:
            pools = pools_of(connection, terms.study_id)
        if pools:
            rows = AllocationTable(engine, pools[0], terms.study_id).segments()
            seconds = measure(rows).seconds
        else:
            seconds = by_dates(trials, datetime.now())
        return Situation(
            terms.deadline - terms.read, terms.parameters.get("max_resource"), seconds
        )


def by_dates(trials: Sequence[FrozenTrial], now: datetime) -> dict[int, float]:
    """Seconds of a step of trials that have trained from their beginning without a break."""
    before = step_before_all(trial.intermediate_values for trial in trials)
    found = {}
    for trial in trials:
        if trial.datetime_start is not None and trial.last_step is not None:
            until = trial.datetime_complete or now
            seconds = (until - trial.datetime_start).total_seconds()
            found[trial.number] = seconds / (trial.last_step - before)
    return found
