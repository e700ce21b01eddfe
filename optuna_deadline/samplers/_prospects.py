"""A study as it will be: every trial has ended with what one like it would come to."""

from __future__ import annotations

import copy
import math
from collections.abc import Container, Sequence

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.forecasting.learning_curves import Curve
from optuna_deadline.forecasting.prospects import prospects
from optuna_deadline.forecasting.reporting import step_before_all
from optuna_deadline.samplers._situation import Situation


class ProspectiveStudy(Study):
    """A study that shows other trials than it has; all else, what is written too, is its own.

    Args:
        study: The study.
        trials: What it shows.
    """

    def __init__(self, study: Study, trials: Sequence[FrozenTrial]) -> None:
        self.__dict__.update(study.__dict__)  # the same storage, sampler and caches
        self._shown = trials

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        shown = [trial for trial in self._shown if states is None or trial.state in states]
        return copy.deepcopy(shown) if deepcopy else shown


def look_ahead(
    trials: Sequence[FrozenTrial], direction: StudyDirection, situation: Situation
) -> list[FrozenTrial] | None:
    """The trials as they would end if they began now.

    A trial that has reported, whatever its state, is shown as complete with its prospect for a
    value; one whose like would not come to its first report, or that has diverged from the start,
    as pruned without a report, which is worse than any value. What has reported nothing and what
    has failed stays as it is.

    Returns:
        None where no trial has reported anything finite.
    """
    sign = 1.0 if direction == StudyDirection.MAXIMIZE else -1.0
    reported = [trial for trial in trials if trial.intermediate_values and _shows(trial)]
    before = step_before_all(trial.intermediate_values for trial in reported)
    curves = {
        trial.number: Curve.of(
            [step - before for step in sorted(trial.intermediate_values)],
            [sign * trial.intermediate_values[k] for k in sorted(trial.intermediate_values)],
        )
        for trial in reported
    }
    known = {number: curve for number, curve in curves.items() if curve is not None}
    if not known:
        return None
    horizon = situation.horizon
    if horizon is not None and 0 < before < horizon:
        horizon -= before
    scores = prospects(known, situation.step_seconds, left=situation.left, horizon=horizon)
    return [
        _ended(trial, sign, scores.get(trial.number, -math.inf))
        if trial.number in curves
        else trial
        for trial in trials
    ]


def _shows(trial: FrozenTrial) -> bool:
    """Whether its parameters are to be learned from."""
    return trial.state not in (TrialState.FAIL, TrialState.WAITING) and bool(trial.params)


def _ended(trial: FrozenTrial, sign: float, score: float) -> FrozenTrial:
    shown = copy.copy(trial)
    if math.isinf(score):
        shown.state, shown.value, shown.intermediate_values = TrialState.PRUNED, None, {}
    else:
        shown.state, shown.value = TrialState.COMPLETE, sign * score
    return shown
