"""The best report of a study, whatever the state of its trial."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.feasibility import INFEASIBLE, feasibility, none_feasible
from optuna_deadline.study.terms import check_single_objective
from optuna_deadline.values.scores import score

#: The user attribute of a trial of a plain study that says why it was pruned.
PRUNED_BECAUSE = "optuna_deadline:pruned_because"

_logger = logging.getLogger("optuna_deadline")


@dataclass(frozen=True)
class Best:
    """The best report of a study.

    Attributes:
        number: The trial's number.
        value: The reported value.
        step: The step of the report; None if the trial only returned its value.
        state: The trial's state.
        params: The trial's parameters.
        feasible: False if it violates a constraint, as all others do.
    """

    number: int
    value: float
    step: int | None
    state: TrialState
    params: dict[str, Any] = field(hash=False)
    feasible: bool = True


def best(study: Study) -> Best:
    """The best report of any trial; a feasible one, if any is known to keep its constraints.

    ``study.best_trial`` only knows complete trials. A trial that ended at the deadline is PRUNED
    if its objective only asks ``should_prune()``, and may hold the best model. If the study has a
    COMPLETE copy of it, this is still the trial that reported. Of equal reports the earliest
    counts; NaN never counts.

    Args:
        study: A study with one objective.

    Raises:
        DeadlineError: No trial has reported, or the study has several objectives.
    """
    found = find_best(study)
    if found is None:
        raise DeadlineError(
            f"No trial of the study {study.study_name!r} has reported a value; let the objective "
            "call trial.report(value, step)."
        )
    if not found.feasible:
        _logger.warning(none_feasible(found.number))
    return found


def find_best(study: Study) -> Best | None:
    """The best report, as :func:`best`; None if no trial has reported."""
    check_single_objective(study)
    return best_of(study.get_trials(deepcopy=False), study.direction)


def best_of(trials: Iterable[FrozenTrial], direction: StudyDirection) -> Best | None:
    """The best report of some trials; None if none has reported."""
    name = direction.name.lower()
    found = (
        (feasibility(trial), score(value, name), trial, step, value)
        for trial in trials
        for step, value in _values(trial)
        if not math.isnan(value)
    )
    best = max(found, key=itemgetter(0, 1), default=None)
    if best is None:
        return None
    feasible, _, trial, step, value = best
    return Best(trial.number, value, step, trial.state, dict(trial.params), feasible != INFEASIBLE)


def _values(trial: FrozenTrial) -> Iterator[tuple[int | None, float]]:
    if trial.intermediate_values:
        yield from sorted(trial.intermediate_values.items())
    elif trial.state == TrialState.COMPLETE and trial.value is not None:
        yield None, trial.value
