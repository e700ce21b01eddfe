"""What a loop of one's own asks: is there time for this trial, and for another one?"""

from __future__ import annotations

from typing import Any

from optuna.study import Study

from optuna_deadline._optuna import as_stored
from optuna_deadline.errors import DeadlineError


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

    Raises:
        DeadlineError: It is a study.
    """
    elastic = getattr(trial, "out_of_time", None)
    if elastic is not None:
        return bool(elastic())
    from optuna_deadline.pruners import find_deadline_pruner  # a rank does not need it

    if isinstance(trial, Study):
        raise DeadlineError(
            "out_of_time takes the trial, and got a study: in a loop of your own, ask "
            "time_left(study) > 0."
        )
    study = getattr(trial, "study", None)
    pruner = find_deadline_pruner(getattr(study, "pruner", None))
    if study is None or pruner is None:
        return False
    return pruner.out_of_time(study, as_stored(trial))


def time_left(study: Study) -> float:
    """Seconds until the study's deadline; negative once it has passed.

    For scripts that ask and tell, whose loop no sampler can end. With a
    :class:`~optuna_deadline.DeadlinePruner` it takes a statement only after the deadline, in case
    another process has moved it.

    Example:
        ```python
        while time_left(study) > 0:
            trial = study.ask()
            study.tell(trial, train(trial))
        ```

    Args:
        study: A study with a deadline.

    Raises:
        DeadlineError: The study has no deadline, or it had passed before this process began.
    """
    from optuna_deadline.allocation.database.opening import open_table
    from optuna_deadline.pruners import find_deadline_pruner
    from optuna_deadline.study import agreement

    pruner = find_deadline_pruner(study.pruner)
    if pruner is None:
        known = agreement.read_stored(open_table(study), study)
        return known.deadline - known.read
    return pruner._tracker(study).time_left_at_last()
