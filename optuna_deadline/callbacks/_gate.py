"""The gate: no trial starts that cannot become useful in the time left."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_deadline import terms as _terms
from optuna_deadline.deadlines import format_duration
from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.entrance import may_enter, seconds_to_matter, steps_to_matter
from optuna_deadline.pruners import find_deadline_pruner
from optuna_deadline.pruners._book import Book

if TYPE_CHECKING:
    from optuna_deadline.dashboard.plain import PlainPublisher

_logger = logging.getLogger(__name__)
_TRIALS_ASKED = 32

#: By storage, since studies in memory all begin at id 0.
_publishers: WeakKeyDictionary[BaseStorage, dict[int, PlainPublisher | None]]
_publishers = WeakKeyDictionary()


class DeadlineGate:
    """Ends ``study.optimize`` in every process once a new trial could not matter any more.

    Give it as ``study.optimize(objective, callbacks=[DeadlineGate()])`` on a study whose pruner is
    a :class:`~optuna_deadline.DeadlinePruner`. After each trial it weighs the time left against
    what a newcomer needs (:mod:`optuna_deadline.forecasting.entrance`), learned from this study's
    trials. The process that finds too little closes the gate for all of them, and each stops when
    its running trials have ended, which they do before the deadline. Extending the deadline opens
    the gate again for the processes that are still there.

    Args:
        publish: Keep a forecast, the rungs and a note in optuna-dashboard fresh, at the end of a
            trial and at most every half minute; None does where that is installed.
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
        book = pruner.book(study)
        book.ended(trial)
        book.refresh()
        if book.terms.gate_closed is None:
            needed, left = _needed(study, book) + book.ending, book.time_left()
            if not may_enter(left, needed):
                if _terms.close_gate(book.engine, book.terms):
                    _logger.info(
                        "No new trial starts: one would need %s to matter and %s are left.",
                        format_duration(needed),
                        format_duration(left),
                    )
                book.refresh()
        if book.terms.gate_closed is not None:
            study.stop()
        if self._publish:
            self._show(study, book)

    def _show(self, study: Study, book: Book) -> None:
        from optuna_deadline.dashboard.plain import PlainPublisher

        mine = _publishers.setdefault(study._storage, {})
        if study._study_id not in mine:
            mine[study._study_id] = PlainPublisher.of(study, book.engine)
        publisher = mine[study._study_id]
        if publisher is not None:
            publisher.work(book.terms, book.time_left())


def _needed(study: Study, book: Book) -> float:
    """Seconds that a newcomer needs."""
    trials = study.get_trials(deepcopy=False)
    rungs = book.rungs
    steps = steps_to_matter(
        max((trial.last_step or 0 for trial in trials), default=0),
        min_resource=rungs.min_resource,
        max_resource=rungs.max_resource,
        reduction_factor=rungs.reduction_factor,
    )
    paces = book.paces(_TRIALS_ASKED)
    if paces:
        per_step = [pace.seconds_per_step or 0.0 for pace in paces]
        return seconds_to_matter(steps, [pace.startup for pace in paces], per_step)
    return _needed_by_durations([trial for trial in trials if trial.duration], steps)


def _needed_by_durations(trials: list[FrozenTrial], steps: float) -> float:
    """The same from whole trials, where this process has seen no report.

    A trial that reports nothing can only be taken as a whole.
    """
    trials = trials[-_TRIALS_ASKED:]
    seconds = [trial.duration.total_seconds() for trial in trials if trial.duration]
    if not seconds:
        return 0.0
    if any(trial.last_step is None for trial in trials):
        return seconds_to_matter(1, [], seconds)
    trained = [max(1, trial.last_step or 0) for trial in trials]
    return seconds_to_matter(steps, [], [s / n for s, n in zip(seconds, trained, strict=True)])
