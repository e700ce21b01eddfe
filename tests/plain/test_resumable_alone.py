"""A loop of `resumable` under study.optimize."""

from __future__ import annotations

from typing import Any

import optuna

from optuna_deadline import DeadlinePruner, resumable


def test_plain_optuna_prunes_and_ends_at_the_deadline(clock: Any) -> None:
    def objective(trial: optuna.Trial) -> float:
        training = resumable(trial, steps=50, state={})
        for step in training:
            clock.advance(1.0)
            step.report(float(trial.number))
        return training.result()

    study = optuna.create_study(pruner=DeadlinePruner("70s")._start(clock))
    study.optimize(objective)
    first, second, *_ = study.trials
    assert len(first.intermediate_values) == 50
    assert second.state is optuna.trial.TrialState.PRUNED
    assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "PRUNED"}
