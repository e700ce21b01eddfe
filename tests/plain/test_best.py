"""The best report wherever it is."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from optuna_deadline import best
from optuna_deadline.errors import DeadlineError


def _trial(study: optuna.Study, *values: float, state: TrialState | None = None) -> None:
    trial = study.ask()
    for step, value in enumerate(values):
        trial.report(value, step)
    if state is not None:
        study.tell(trial, values[-1] if state == TrialState.COMPLETE else None, state)


@pytest.mark.parametrize(
    ("direction", "expected"), [("minimize", (3, -9.0, 0)), ("maximize", (3, 9.0, 1))]
)
def test_in_every_state(storage: str | None, direction: Any, expected: Any) -> None:
    study = optuna.create_study(storage=storage, direction=direction)
    _trial(study, 2.0, 1.0, state=TrialState.COMPLETE)
    _trial(study, 3.0, 5.0, math.nan, state=TrialState.PRUNED)
    _trial(study, 0.5, 4.0)
    _trial(study, -9.0, 9.0, state=TrialState.FAIL)
    found = best(study)
    assert (found.number, found.value, found.step) == expected
    assert found.state is TrialState.FAIL, "a worker's trial that fails may win, too"


@pytest.mark.parametrize(
    ("sizes", "number", "feasible"),
    [((1.0, -1.0, None), 1, True), ((1.0, None, None), 2, True), ((1.0, 1.0, 2.0), 0, False)],
)
def test_feasibility_decides_before_the_value(
    sizes: tuple[float | None, ...], number: int, feasible: bool, caplog: pytest.LogCaptureFixture
) -> None:
    study = optuna.create_study()
    for size, value in zip(sizes, (0.1, 0.3, 0.2), strict=True):
        trial = study.ask()
        if size is not None:
            study._storage.set_trial_system_attr(trial._trial_id, "constraints:size", size)
        trial.report(value, 1)
    found = best(study)
    assert (found.number, found.feasible) == (number, feasible)
    assert ("No trial is feasible" in caplog.text) == (not feasible)


def test_complete_without_reports_counts_by_its_value() -> None:
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    found = best(study)
    assert (found.value, found.step, found.params) == (study.best_value, None, study.best_params)


def test_of_equals_the_earliest() -> None:
    study = optuna.create_study()
    _trial(study, 2.0, 1.0, 1.0)
    _trial(study, 1.0)
    assert (best(study).number, best(study).step) == (0, 1)


def test_nothing_reported(storage: str | None) -> None:
    study = optuna.create_study(storage=storage)
    _trial(study, math.nan)
    with pytest.raises(DeadlineError, match=r"call trial\.report\(value, step\)"):
        best(study)


def test_several_objectives_are_refused() -> None:
    with pytest.raises(DeadlineError, match="single direction"):
        best(optuna.create_study(directions=["minimize"] * 2))
