"""What a sampler is shown of trials that have no final value: they pause, train or were pruned."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline._optuna import constrained, constraints, constraints_so_far
from optuna_deadline.allocation.database.opening import given_url, opened_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.forecasting.learning_curves import Curve
from optuna_deadline.forecasting.reporting import prospects, step_before_all
from optuna_deadline.history.series import measure
from optuna_deadline.study import agreement
from optuna_deadline.values.scores import score


@dataclass(frozen=True)
class Situation:
    """The time left and the paces of trials.

    Attributes:
        left: Seconds until the deadline; infinite without one.
        horizon: Steps of a full training; None if unknown.
        step_seconds: Seconds per step on one slot, by trial.
    """

    left: float
    horizon: int | None
    step_seconds: Mapping[int, float]


#: Reads the situation of a study from the study and its trials.
Look = Callable[[Study, Sequence[FrozenTrial]], Situation]


class TableLook:
    """Reads the allocation table, if this process uses one; a study without one has no deadline.

    The pace of an elastic trial comes from its segments, since it waits and changes its slots. The
    pace of a plain trial comes from its dates.

    Args:
        storage: The database of the allocation table, if the study's storage is not SQL.
    """

    def __init__(self, storage: str | None = None) -> None:
        self._table_url = None if storage is None else given_url(storage)

    def __call__(self, study: Study, trials: Sequence[FrozenTrial]) -> Situation:
        """Three statements, whatever the number of trials."""
        database = opened_table(study, self._table_url)
        terms = None if database is None else agreement.read(database, study)
        if database is None or terms is None:
            return Situation(math.inf, None, by_dates(trials, datetime.now()))
        rows = AllocationTable(database, terms.name, terms.study_id).segments()
        seconds = measure(rows).seconds if rows else by_dates(trials, datetime.now())
        return Situation(
            terms.deadline - terms.read, terms.parameters.get("max_resource"), seconds
        )


def by_dates(trials: Sequence[FrozenTrial], now: datetime) -> dict[int, float]:
    """Seconds per step of trials that have trained without a break."""
    before = step_before_all(trial.intermediate_values for trial in trials)
    found = {}
    for trial in trials:
        if trial.datetime_start is not None and trial.last_step is not None:
            until = trial.datetime_complete or now
            seconds = (until - trial.datetime_start).total_seconds()
            found[trial.number] = seconds / (trial.last_step - before)
    return found


def look_ahead(
    trials: Sequence[FrozenTrial], direction: StudyDirection, situation: Situation | None
) -> list[FrozenTrial]:
    """The trials as they would end if they started now.

    A trial that has reported, whatever its state, is shown as complete with its forecast value.
    If a trial with its parameters could not make its first report in time, or if it has diverged
    from the start, it is shown as pruned without a report, which is worse than any value. Trials
    without a report and failed trials are unchanged.

    Args:
        trials: The trials of a study.
        direction: The study's direction.
        situation: The time left and the paces; None shows the best reports in place of forecasts.
    """
    name = direction.name.lower()
    unknown = (TrialState.FAIL, TrialState.WAITING)
    reported = [
        trial
        for trial in trials
        if trial.intermediate_values and trial.params and trial.state not in unknown
    ]
    before = step_before_all(trial.intermediate_values for trial in reported)
    curves = {
        trial.number: Curve.of(
            [step - before for step in sorted(trial.intermediate_values)],
            [score(value, name) for _, value in sorted(trial.intermediate_values.items())],
        )
        for trial in reported
    }
    known = {number: curve for number, curve in curves.items() if curve is not None}
    if situation is None:
        scores = {number: curve.best[-1] for number, curve in known.items()}
    else:
        horizon = situation.horizon
        if horizon is not None and 0 < before < horizon:
            horizon -= before
        scores = prospects(known, situation.step_seconds, left=situation.left, horizon=horizon)
    return [
        _ended(trial, name, scores.get(trial.number, -math.inf))
        if trial.number in curves
        else trial
        for trial in trials
    ]


def with_constraints(trial: FrozenTrial, compute: Callable[[FrozenTrial], Any]) -> FrozenTrial:
    """A trial that has reported, with the constraints that it would have if it ended now.

    Args:
        trial: Any trial.
        compute: The sampler's ``constraints_func``. A trial for which it raises is shown without
            its reports.
    """
    if trial.state != TrialState.RUNNING or not trial.intermediate_values or constraints(trial):
        return trial
    values = constraints_so_far(trial, compute)
    if values is not None:
        return constrained(trial, values)
    shown = copy.copy(trial)
    shown.intermediate_values = {}
    return shown


def _ended(trial: FrozenTrial, direction: str, prospect: float) -> FrozenTrial:
    shown = copy.copy(trial)
    if math.isinf(prospect):
        shown.state, shown.value, shown.intermediate_values = TrialState.PRUNED, None, {}
    else:
        shown.state, shown.value = TrialState.COMPLETE, score(prospect, direction)
    return shown
