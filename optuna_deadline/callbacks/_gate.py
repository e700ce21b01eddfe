"""The gate: near the deadline, only trials that can still matter are started."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.reporting import (
    may_enter,
    seconds_to_enter,
    seconds_to_matter,
    step_before,
    steps_to_matter,
)
from optuna_deadline.pruners import find_deadline_pruner
from optuna_deadline.pruners._complete_best import complete_the_best
from optuna_deadline.pruners._rung_rule import rungs_of
from optuna_deadline.pruners._study_tracker import StudyTracker
from optuna_deadline.samplers._deadline import end_abandoned
from optuna_deadline.study import terms as _terms
from optuna_deadline.values.deadlines import format_duration

if TYPE_CHECKING:
    from optuna_deadline.dashboard.plain import PlainPublisher


_logger = logging.getLogger(__name__)
#: By storage, since studies in memory all begin at id 0.
_publishers: WeakKeyDictionary[BaseStorage, dict[int, PlainPublisher | None]]
_publishers = WeakKeyDictionary()


class DeadlineGate:
    """Ends ``study.optimize`` in a process once a new trial can no longer matter.

    Pass it as ``study.optimize(objective, callbacks=[DeadlineGate()])`` on a study whose pruner is
    a :class:`~optuna_deadline.DeadlinePruner`. After each trial it compares the time left with the
    time that a new trial needs (:mod:`optuna_deadline.forecasting.reporting`). It learns this
    from the trials of this process, so a process on a slower machine stops earlier. The process
    stops when its running trials have ended, which they do before the deadline. If the deadline is
    extended, the gate opens again for processes that still run.

    If ``study.optimize`` ends early by more than a tenth of its time, a warning says why. At its
    end, the gate ends the trials of dead processes of this host, and those of other hosts if the
    storage has Optuna's heartbeat. If the best report is then of a PRUNED trial, because an
    integration only asks ``should_prune()``, the study gets a COMPLETE copy of it with this report
    as its value. The user attribute ``optuna_deadline:copy_of`` names the copied trial.

    Args:
        publish: Update a forecast, the rungs and a note in optuna-dashboard at the end of a trial,
            at most every 30 s; None does if optuna-dashboard is installed.
    """

    def __init__(self, publish: bool | None = None) -> None:
        self._publish = find_spec("optuna_dashboard") is not None if publish is None else publish

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        """Decide whether another trial may start.

        Raises:
            DeadlineError: The study has no DeadlinePruner, or several objectives.
        """
        pruner = find_deadline_pruner(study.pruner)
        if pruner is None:
            raise DeadlineError(
                "DeadlineGate reads the deadline from the study's pruner; create the study with "
                "pruner=DeadlinePruner(deadline)."
            )
        tracker = pruner.tracker(study)
        tracker.ended(trial, trial.state)
        tracker.refresh()
        needed, left = _needed(study, tracker) + tracker.ending_seconds, tracker.time_left()
        if not may_enter(left, needed):
            self._stop(study, tracker, needed, left)
        else:
            # A process with less time left closed it, not another thread of this process.
            if tracker.terms.gate_closed is not None and not study._stop_flag:
                _terms.open_gate(tracker.engine, tracker.terms)
            _explain_stop(study, tracker, left)
        if study._stop_flag or left <= 0:
            end_abandoned(study)
            complete_the_best(study, tracker)
        if self._publish:
            self._publish_page(study, tracker)

    def _stop(self, study: Study, tracker: StudyTracker, needed: float, left: float) -> None:
        if not tracker.stopping:
            tracker.stopping = True
            _logger.log(
                logging.WARNING if tracker.is_early(left) else logging.INFO,
                "study.optimize ends %s before the deadline: a new trial of this process would "
                "need %s to matter.",
                format_duration(left),
                format_duration(needed),
            )
        study.stop()  # first: another thread that sees the gate closed must see the flag too
        if _terms.close_gate(tracker.engine, tracker.terms):
            tracker.refresh()

    def _publish_page(self, study: Study, tracker: StudyTracker) -> None:
        from optuna_deadline.dashboard.plain import PlainPublisher

        mine = _publishers.setdefault(study._storage, {})
        if study._study_id not in mine:
            mine[study._study_id] = PlainPublisher.of(study, tracker.engine)
        publisher = mine[study._study_id]
        if publisher is not None:
            publisher.work(tracker.terms, tracker.time_left())


def _explain_stop(study: Study, tracker: StudyTracker, left: float) -> None:
    """Log that another cause ended ``study.optimize``, if that was early."""
    if not study._stop_flag:
        tracker.stopping = False
    elif not tracker.stopping:
        tracker.stopping = True
        if tracker.is_early(left) and not tracker.explained:
            _logger.warning(
                "study.optimize ends %s before the deadline: Study.stop was called, by the "
                "sampler (%s) because nothing is left to search, by the objective or by another "
                "callback.",
                format_duration(left),
                study.sampler,
            )


def _needed(study: Study, tracker: StudyTracker) -> float:
    """Seconds that a new trial needs in this process.

    Without any report, only the duration of whole trials is known.
    """
    paces = tracker.paces()
    if not paces:
        return (
            seconds_to_matter(1, [], tracker.seconds_without_report)
            if tracker.seconds_without_report
            else 0.0
        )
    reports = [trial.intermediate_values for trial in study.get_trials(deepcopy=False)]
    rungs = rungs_of(tracker.terms)
    steps = steps_to_matter(
        max((max(one) - step_before(one) for one in reports if one), default=0),
        min_resource=rungs.min_resource,
        max_resource=rungs.max_resource,
        reduction_factor=rungs.reduction_factor,
    )
    return seconds_to_enter(steps, paces)
