"""A study without workers follows the policies that never pause."""

from __future__ import annotations

import logging
from typing import Any

import optuna
import pytest

from optuna_deadline import DeadlinePruner, DeadlineSampler


def optimize(policy: str | None, clock: Any) -> optuna.Study:
    return prune_by(DeadlinePruner("1h", policy=policy, clock=clock), clock)


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


def test_fifo_prunes_nothing(clock: Any) -> None:
    assert pruned(optimize("fifo", clock)) == 0


def test_median_and_halving_prune_as_optunas_own_do(clock: Any) -> None:
    optunas = {
        "median": optuna.pruners.MedianPruner(),
        "asha": optuna.pruners.SuccessiveHalvingPruner(min_resource=1),
    }
    for policy, pruner in optunas.items():
        ours, theirs = optimize(policy, clock), prune_by(pruner, clock)
        steps = [trial.last_step for trial in theirs.trials]
        assert [trial.last_step for trial in ours.trials] == steps and pruned(theirs) > 0


@pytest.mark.parametrize(("policy", "warned"), [("hermes", 1), ("hypersched", 0), (None, 0)])
def test_a_policy_that_pauses_is_named_once(
    policy: str | None, warned: int, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        assert pruned(optimize(policy, clock)) == 11
    assert sum("pauses trials" in record.message for record in caplog.records) == warned


def test_a_sampler_without_a_deadline_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    study = optuna.create_study(sampler=DeadlineSampler(seed=1))
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    [record] = [one for one in caplog.records if "finds no deadline" in one.message]
    assert "pruner=DeadlinePruner('2h')" in record.message
