"""A pruner of Optuna inside a DeadlinePruner decides, and the deadline ends trials."""

from __future__ import annotations

import logging
from typing import Any

import optuna
import pytest
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner

from optuna_deadline import DeadlinePruner, DeadlineSampler
from optuna_deadline.errors import DeadlineError
from optuna_deadline.pruners._deadline import OUT_OF_TIME
from optuna_deadline.study.best import PRUNED_BECAUSE


def prune_by(pruner: optuna.pruners.BasePruner, clock: Any) -> optuna.Study:
    study = optuna.create_study(pruner=pruner, direction="maximize")

    def objective(trial: optuna.Trial) -> float:
        for step in range(1, 20):
            clock.advance(0.1)
            trial.report(-trial.number, step)  # each is worse than all before it
            if trial.should_prune():
                raise optuna.TrialPruned
        return -trial.number

    study.optimize(objective, n_trials=12)
    return study


def pruned(study: optuna.Study) -> int:
    return len(study.get_trials(states=(optuna.trial.TrialState.PRUNED,)))


@pytest.mark.parametrize(
    ("inner", "ends"),
    [(NopPruner(), 0), (MedianPruner(), 6), (SuccessiveHalvingPruner(min_resource=1), 9)],
)
def test_a_pruner_inside_decides_as_alone(inner: BasePruner, ends: int, clock: Any) -> None:
    alone = prune_by(inner, clock)
    ours = prune_by(DeadlinePruner("1h", inner=inner)._start(clock), clock)
    steps = [trial.last_step for trial in alone.trials]
    assert [trial.last_step for trial in ours.trials] == steps
    assert pruned(alone) == pruned(ours) >= ends


def test_the_deadline_ends_trials_that_the_pruner_inside_keeps(clock: Any) -> None:
    ours = prune_by(DeadlinePruner("1s", inner=NopPruner())._start(clock), clock)
    trial = ours.trials[0]
    assert trial.last_step is not None and trial.last_step < 11
    assert trial.user_attrs[PRUNED_BECAUSE] == OUT_OF_TIME


def test_what_is_no_pruner_is_refused() -> None:
    with pytest.raises(DeadlineError, match="inner must be a pruner of Optuna, but got 'median'"):
        DeadlinePruner("1h", inner="median")  # type: ignore[arg-type]


def test_a_sampler_without_a_deadline_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    study = optuna.create_study(sampler=DeadlineSampler(seed=1))
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    [record] = [one for one in caplog.records if "finds no deadline" in one.message]
    assert "pruner=DeadlinePruner('2h')" in record.message
