"""Make the best trial of a plain study COMPLETE, also if integrations only ask to prune."""

from __future__ import annotations

import logging
import threading

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_deadline._optuna import constraint_attributes
from optuna_deadline.planning.feasibility import feasibility
from optuna_deadline.pruners._study_tracker import StudyTracker
from optuna_deadline.study.best import PRUNED_BECAUSE, Best, best_of
from optuna_deadline.values.scores import score

_logger = logging.getLogger("optuna_deadline")
_one_thread = threading.Lock()  # so that the next thread finds the copy

#: The user attribute of a copy: the number of the trial that it copies.
COPY_OF = "optuna_deadline:copy_of"
_ENDED_EARLY = (TrialState.PRUNED, TrialState.FAIL)


def complete_the_best(study: Study, tracker: StudyTracker | None = None) -> None:
    """Add a COMPLETE copy of the trial with the best report, where that is PRUNED or FAIL.

    An integration's callback raises ``TrialPruned`` if ``should_prune()`` returns True, also at
    the deadline, and Optuna never changes the state of a finished trial. Each process handles its
    own trials. The last process also handles those of dead processes.

    Args:
        study: A study with one objective, whose ``optimize`` ends in this process.
        tracker: Its tracker, which knows the trials of this process, and those that end now and
            are still RUNNING in the storage; None if this process trains no trial.
    """
    with _one_thread:
        own, ending = (tracker.numbers, tracker.ending) if tracker else (set[int](), {})
        _complete_the_best(study, own, ending)


def _complete_the_best(study: Study, own: set[int], ending: dict[int, FrozenTrial]) -> None:
    trials = study.get_trials(deepcopy=False)
    for place, trial in enumerate(trials):
        if trial.state is TrialState.RUNNING and (ended := ending.get(trial.number)) is not None:
            ended.system_attrs = trial.system_attrs  # the sampler has set its constraints since
            trials[place] = ended
    running = {trial.number for trial in trials if trial.state is TrialState.RUNNING}
    if running.intersection(own):
        return  # their results are not known yet
    pruned = [
        trial
        for trial in trials
        if trial.state in _ENDED_EARLY and (trial.number in own or not running)
    ]
    best = best_of(pruned, study.direction)
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    if best is None or best != best_of([*complete, *pruned], study.direction):
        return
    [original] = [trial for trial in pruned if trial.number == best.number]
    direction = study.direction.name.lower()
    known = feasibility(original), score(best.value, direction)
    if any(
        (feasibility(one), score(one.value, direction)) >= known
        for one in complete
        if one.value is not None
    ):
        return
    study.add_trial(_copy(original, best))
    _logger.info(
        "The best report, %g, is of trial %d, which ended %s; the study gets a COMPLETE copy.",
        best.value,
        best.number,
        original.state.name,
    )


def _copy(original: FrozenTrial, best: Best) -> FrozenTrial:
    # Samplers count their attributes, so the copy has none of them; it was not pruned.
    attributes = {k: v for k, v in original.user_attrs.items() if k != PRUNED_BECAUSE}
    copied = create_trial(
        state=TrialState.COMPLETE,
        value=best.value,
        params=original.params,
        distributions=original.distributions,
        user_attrs={**attributes, COPY_OF: original.number},
        system_attrs=constraint_attributes(original),
        intermediate_values=original.intermediate_values,
    )
    copied.datetime_start = original.datetime_start
    if original.datetime_complete is not None:
        copied.datetime_complete = original.datetime_complete
    return copied
