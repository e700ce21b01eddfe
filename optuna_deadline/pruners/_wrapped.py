"""A DeadlinePruner inside another pruner still ends trials by the deadline."""

from __future__ import annotations

from typing import Any

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_deadline.pruners._deadline import DeadlinePruner


class EndsAtDeadline(BasePruner):
    """Ends trials by the deadline, and asks another pruner about everything else.

    Optuna's PatientPruner does not ask the pruner inside it while a trial improves.

    Args:
        pruner: A pruner around a DeadlinePruner.
    """

    def __init__(self, pruner: BasePruner) -> None:
        self._wrapped_pruner = pruner

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether the deadline or the pruner ends the trial."""
        deadline = find_deadline_pruner(self._wrapped_pruner)
        late = deadline is not None and deadline._prune_late(study, trial)
        return late or self._wrapped_pruner.prune(study, trial)


def find_deadline_pruner(pruner: Any) -> DeadlinePruner | None:
    """The :class:`DeadlinePruner` that ``pruner`` is or holds, if any."""
    if isinstance(pruner, DeadlinePruner):
        return pruner
    if isinstance(pruner, BasePruner):
        held = list(getattr(pruner, "__dict__", {}).values())
    else:
        held = list(pruner) if isinstance(pruner, (list, tuple)) else []
    return next((found for one in held if (found := find_deadline_pruner(one))), None)


def end_at_deadline(study: Study, pruner: DeadlinePruner) -> None:
    """Let the deadline end the trials of a study, whatever is around its DeadlinePruner."""
    if study.pruner is not pruner and not isinstance(study.pruner, EndsAtDeadline):
        study.pruner = EndsAtDeadline(study.pruner)
