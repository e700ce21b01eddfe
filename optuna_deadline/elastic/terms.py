"""What a study agrees on before its worker starts."""

from __future__ import annotations

import math
from typing import Any

from optuna.study import Study

from optuna_deadline import choice
from optuna_deadline import terms as study_terms
from optuna_deadline.allocation.engine import open_table
from optuna_deadline.budgets import Budget
from optuna_deadline.deadlines import DeadlineLike
from optuna_deadline.errors import DeadlineError, argument
from optuna_deadline.pruners import DeadlinePruner
from optuna_deadline.terms import Terms


def agree(
    study: Study,
    deadline: DeadlineLike | None,
    policy: choice.PolicyLike | None,
    parameters: dict[str, Any],
    *,
    extend: bool = False,
    table: str | None = None,
    budget: Budget | None = None,
) -> Terms:
    """The study's terms: those asked for, its pruner's, or those that hold already.

    A reduction factor of None is the one that holds already, or the policy's own.
    """
    engine = open_table(study, table)
    if deadline is not None:
        if parameters.get("reduction_factor", 0) is None:
            known = study_terms.read(engine, study)
            factor = None if known is None else known.parameters.get("reduction_factor")
            factor = factor or choice.own_factor(policy, parameters)
            parameters = {**parameters, "reduction_factor": factor}
        return study_terms.fix(
            engine, study, deadline,
            policy=policy, parameters=parameters, budget=budget, extend=extend,
        )  # fmt: skip
    if budget is not None:
        raise DeadlineError("A budget is fixed with the deadline: pass deadline='2h' too.")
    if isinstance(study.pruner, DeadlinePruner):
        return study.pruner.terms(study)
    found = study_terms.read(engine, study)
    if found is None:
        raise DeadlineError(
            f"The study {study.study_name!r} has no deadline yet: {study_terms.fixing(study)}."
        )
    return found


def check_weight(weight: float | None) -> float | None:
    """A study's weight in its pool, if it is one.

    Raises:
        DeadlineError: It is no positive number.
    """
    if weight is not None and not (isinstance(weight, (int, float)) and 0 < weight < math.inf):
        raise DeadlineError(
            f"{argument('weight')} must be a positive number such as 2, but got {weight!r}."
        )
    return weight


def check_park(park: int) -> int:
    """How many paused trials may wait in memory, if it is a number of trials.

    Raises:
        DeadlineError: It is none.
    """
    if not isinstance(park, int) or park < 0:
        raise DeadlineError(
            f"{argument('park')} must be a number of trials such as 2, but got {park!r}."
        )
    return park
