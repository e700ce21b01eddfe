"""A callback that ends a study by its deadline, and keeps its page in optuna-dashboard current."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_deadline._optuna import id_of, is_stopping, storage_of
from optuna_deadline.dashboard import is_wanted
from optuna_deadline.errors import DeadlineError
from optuna_deadline.pruners import find_deadline_pruner
from optuna_deadline.pruners._study_tracker import StudyTracker
from optuna_deadline.samplers._deadline import finish

if TYPE_CHECKING:
    from optuna_deadline.dashboard.plain import PlainPublisher

#: By storage, since studies in memory all begin at id 0.
_publishers: WeakKeyDictionary[BaseStorage, dict[int, PlainPublisher | None]]
_publishers = WeakKeyDictionary()


class DeadlineGate:
    """Ends ``study.optimize`` as :class:`~optuna_deadline.DeadlineSampler` does, after each trial.

    Pass it as ``study.optimize(objective, callbacks=[DeadlineGate()])`` on a study whose pruner is
    a :class:`~optuna_deadline.DeadlinePruner`. It is for a study with another sampler, for a study
    that ``Study.stop`` may end, and for a page in optuna-dashboard.

    ``study.optimize`` ends in a process where a new trial would hardly report before the deadline.
    The gate then ends the trials of dead processes of this host, and those of other hosts if the
    storage has Optuna's heartbeat. If the best report is of a PRUNED trial, because an integration
    only asks ``should_prune()``, the study gets a COMPLETE copy of it with this report as its
    value. The user attribute ``optuna_deadline:copy_of`` names the copied trial.

    Args:
        dashboard: Update a forecast, the rungs and a note in optuna-dashboard at the end of a
            trial, at most every 30 s; None does if optuna-dashboard is installed.
    """

    def __init__(self, dashboard: bool | None = None) -> None:
        self._publish = is_wanted(dashboard)

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
        tracker = pruner._tracker(study)
        if pruner._trial_ends(study, trial, trial.state, trial.values) or is_stopping(study):
            finish(study, tracker)
        if self._publish:
            self._publish_page(study, tracker)

    def _publish_page(self, study: Study, tracker: StudyTracker) -> None:
        from optuna_deadline.dashboard.plain import PlainPublisher

        mine = _publishers.setdefault(storage_of(study), {})
        if id_of(study) not in mine:
            mine[id_of(study)] = PlainPublisher.of(study, tracker.database)
        publisher = mine[id_of(study)]
        if publisher is not None:
            publisher.work(tracker.terms, tracker.time_left())
