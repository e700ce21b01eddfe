"""Every sampler of Optuna in a plain study with a deadline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    CmaEsSampler,
    GPSampler,
    GridSampler,
    NSGAIIISampler,
    NSGAIISampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from optuna_deadline import DeadlineGate, DeadlinePruner, DeadlineSampler, out_of_time

ENDLESS: dict[str, Callable[[], BaseSampler]] = {
    "tpe": lambda: TPESampler(n_startup_trials=3),
    "random": RandomSampler,
    "qmc": QMCSampler,
    "cmaes": lambda: CmaEsSampler(n_startup_trials=2),
    "gp": lambda: GPSampler(n_startup_trials=3, deterministic_objective=True),
    "nsgaii": lambda: NSGAIISampler(population_size=4),
    "nsgaiii": lambda: NSGAIIISampler(population_size=4),
    "partial": lambda: PartialFixedSampler({"x": 0.5}, RandomSampler()),
}
FINITE: dict[str, Callable[[], BaseSampler]] = {
    "grid": lambda: GridSampler({"a": [1, 2, 3], "b": [0, 1]}),
    "brute": BruteForceSampler,
}
pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:optuna"),
    pytest.mark.slow_names(r"gp"),
]


def _optimize(sampler: BaseSampler, clock: Any, draw: Callable[[optuna.Trial], float]) -> Any:
    study = optuna.create_study(
        sampler=DeadlineSampler(sampler),
        pruner=DeadlinePruner("1000s", max_resource=9)._start(clock),
    )

    def objective(trial: optuna.Trial) -> float:
        value = draw(trial)
        for step in range(1, 10):
            clock.advance(10)
            trial.report(value, step)
            if out_of_time(trial):
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    study.optimize(objective, callbacks=[DeadlineGate(dashboard=False)])
    return study


@pytest.mark.parametrize("name", ENDLESS)
def test_a_sampler_without_end_searches_to_the_deadline(name: str, clock: Any) -> None:
    if name == "cmaes":
        pytest.importorskip("cmaes")
    study = _optimize(
        ENDLESS[name](),
        clock,
        lambda trial: trial.suggest_float("x", 0, 1) + trial.suggest_float("y", 0, 1),
    )
    assert study.pruner._tracker(study).time_left() < 100
    assert len(study.trials) > 9


@pytest.mark.parametrize("name", FINITE)
def test_an_exhausted_search_ends_the_study_and_a_warning_says_so(
    name: str, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        study = _optimize(
            FINITE[name](),
            clock,
            lambda trial: float(
                trial.suggest_categorical("a", [1, 2, 3]) + trial.suggest_int("b", 0, 1)
            ),
        )
    assert len({tuple(trial.params.items()) for trial in study.trials}) == len(study.trials) == 6
    [record] = caplog.records
    assert "before the deadline: Study.stop was called, by the sampler (" in record.message
    assert "because nothing is left to search" in record.message
