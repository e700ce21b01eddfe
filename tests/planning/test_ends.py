"""How a study ends."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from optuna_deadline.planning.trials import OptunaTrials


def test_only_trials_that_nobody_ever_trained_are_adopted() -> None:
    study = optuna.create_study()
    on_the_table, stray, plain = study.ask(), study.ask(), study.ask()
    plain.suggest_float("x", 0, 1)
    OptunaTrials(study).adopt_strays({on_the_table.number})
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.RUNNING, TrialState.PRUNED, TrialState.RUNNING]
    assert stray.number == 1
