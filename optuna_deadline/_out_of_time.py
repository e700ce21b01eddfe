"""The check that a hand-written training loop makes besides ``should_prune()``."""

from __future__ import annotations

from typing import Any


def out_of_time(trial: Any) -> bool:
    """Whether the trial should stop training now and return its value.

    A trial that stops at the deadline is not pruned: call this before ``should_prune()``, and the
    trial ends COMPLETE with its last value.

    Example:
        ```python
        for epoch in range(100):
            value = train_one_epoch()
            trial.report(value, epoch)
            if out_of_time(trial):
                break
            if trial.should_prune():
                raise optuna.TrialPruned()
        return value
        ```

    Args:
        trial: The trial that the objective was called with.

    Returns:
        Under an elastic worker, whether the worker ends the trial for the deadline. In plain
        Optuna, whether the next report would come after the deadline of the study's
        :class:`~optuna_deadline.DeadlinePruner`, or the trial has trained for its
        ``max_resource``; False if the study has no such pruner.
    """
    elastic = getattr(trial, "out_of_time", None)
    if elastic is not None:
        return bool(elastic())
    from optuna_deadline.pruners import find_deadline_pruner  # a rank does not need it

    study = getattr(trial, "study", None)
    pruner = find_deadline_pruner(getattr(study, "pruner", None))
    if study is None or pruner is None:
        return False
    return pruner.out_of_time(study, trial._get_latest_trial())
