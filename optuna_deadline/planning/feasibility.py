"""Constraints: whether a trial may win, which decides before its value.

A constraint is a number that must not be positive. Users set them by ``Trial.set_constraint``, or
the sampler's ``constraints_func`` computes them when a trial ends; Optuna stores both as system
attributes. Only what compares trials for good asks: the best report, the winner, the COMPLETE
copy, the checkpoints that stay, the parameters of earlier studies. Policies, pruners and charts
rank by the value alone, since most constraints are known at a trial's end only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_deadline._optuna import constraints_func, constraints_so_far
from optuna_deadline.planning.optuna_storage import read_trial

#: The larger one wins. A trial of a study without constraints is of unknown feasibility.
INFEASIBLE, UNKNOWN, FEASIBLE = 0, 1, 2


def feasibility(trial: FrozenTrial, compute: Callable[[FrozenTrial], Any] | None = None) -> int:
    """Whether a trial keeps its constraints, as far as that is known.

    Args:
        trial: The trial.
        compute: The sampler's ``constraints_func``, for a trial that has not ended in Optuna.
    """
    values = constraints_so_far(trial, compute)
    if not values:
        return UNKNOWN
    return FEASIBLE if all(value <= 0.0 for value in values) else INFEASIBLE


def none_feasible(number: int) -> str:
    """What to say where the best trial violates a constraint."""
    return f"No trial is feasible: the best one, trial {number}, violates a constraint."


def known_feasibility(study: Study, numbers: Iterable[int] | None = None) -> dict[int, int]:
    """The feasibility of all trials, or of some, where it is known."""
    compute = constraints_func(study.sampler)
    if numbers is None:
        trials = study.get_trials(deepcopy=False)
    else:
        trials = [read_trial(study, number) for number in numbers]
    found = {trial.number: feasibility(trial, compute) for trial in trials}
    return {number: feasible for number, feasible in found.items() if feasible != UNKNOWN}
