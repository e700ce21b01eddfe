"""Studies under a DeadlinePruner, and trials that have reported."""

from __future__ import annotations

from typing import Any

import optuna

from optuna_deadline import DeadlinePruner


def pruned_study(
    storage: Any = None, /, direction: Any = "minimize", **kwargs: Any
) -> optuna.Study:
    """A study that any process may join."""
    kwargs = {"deadline": "100h", **kwargs}
    clock = kwargs.pop("clock", None)
    pruner = DeadlinePruner(**kwargs)
    return optuna.create_study(
        storage=storage,
        direction=direction,
        study_name="s",
        load_if_exists=True,
        pruner=pruner if clock is None else pruner._start(clock),
    )


def reported(study: optuna.Study, *values: float, first_step: int = 1) -> optuna.Trial:
    """A new trial with a report for each step."""
    trial = study.ask()
    for step, value in enumerate(values, start=first_step):
        trial.report(value, step)
    return trial
