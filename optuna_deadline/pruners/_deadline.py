"""The pruner that knows the clock."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from optuna.pruners import BasePruner
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline._optuna import id_of, id_of_trial, in_optimize_loop, is_stopping, storage_of
from optuna_deadline.allocation.database.opening import given_url, open_table
from optuna_deadline.errors import DeadlineError, DeadlinePassed
from optuna_deadline.policies.base import Resources
from optuna_deadline.pruners._clock import ProcessClock
from optuna_deadline.pruners._study_over import returns_at_once
from optuna_deadline.pruners._study_tracker import StudyTracker
from optuna_deadline.pruners._watch import DeadlineWatch, trained_here
from optuna_deadline.study import agreement
from optuna_deadline.study import terms as study_terms
from optuna_deadline.study.best import PRUNED_BECAUSE
from optuna_deadline.study.terms import Given, Terms
from optuna_deadline.values.deadlines import DeadlineLike, format_duration, parse_deadline

_logger = logging.getLogger("optuna_deadline")

#: What ``PRUNED_BECAUSE`` says where the deadline ended the trial.
OUT_OF_TIME = "its next report would come after the deadline"


class DeadlinePruner(BasePruner):
    """Prunes trials so that the best model is found by a deadline that all processes share.

    The first process stores the deadline and the parameters in the study; the others use them. A
    process that asks for another deadline gets an error.

    A trial's value is recorded at its 1st, 2nd, 4th, 8th, ... report. At every report the trial is
    compared at the newest of these rungs with all trials that have reached it. It is pruned if
    too many are better by more than training to the next rung usually gains
    (:mod:`optuna_deadline.policies.measured_halving`). How many are too many is measured: few if
    the order of the trials holds from one rung to the next, all if it does not. Near the deadline,
    when no new trial could come as far, nothing is pruned. If the number of trials is known, by
    ``n_trials`` or because the search is finite, as many go on at each rung as the time suffices
    for. The rule is our own.

    A trial whose next report would come after the deadline ends as well:
    with :func:`optuna_deadline.out_of_time` the objective can then return its value.
    ``study.optimize`` returns when a new trial would hardly report before the deadline. If the
    best report is then of a PRUNED trial, because an integration only asks ``should_prune()``,
    the study gets a COMPLETE copy of it.

    The user attribute ``optuna_deadline:pruned_because`` of a trial says why it was pruned;
    :func:`optuna_deadline.deadline_report` prints them all.

    Example:
        ```python
        study = optuna.create_study(pruner=DeadlinePruner("2h"), sampler=DeadlineSampler())
        study.optimize(objective)
        ```

    Args:
        deadline: A timedelta, an aware datetime, ``"2h30m"``, or an ISO 8601 time with its zone.
            A duration counts from the construction of the pruner that fixes it.
        max_resource: The step at which a trial ends normally; None if it is unknown.
        n_trials: How many trials the study is to have; None for as many as the time allows. The
            rule counts on them, so that few trials are trained longer each; give it to
            ``study.optimize`` too, which ends after them.
        inner: A pruner of Optuna, as ``MedianPruner()``, that decides in place of the rule above.
            It is of this process only.
        extend: Move the study's deadline to this later one, for every process: an instant, or a
            duration once the deadline has passed.
        storage: URL of a SQLite or PostgreSQL database for the table, needed if the study's
            storage is not SQL.

    Raises:
        DeadlineError: An argument is invalid; the message says what to give instead.
    """

    def __init__(
        self,
        deadline: DeadlineLike,
        *,
        max_resource: int | None = None,
        n_trials: int | None = None,
        inner: BasePruner | None = None,
        extend: bool = False,
        storage: str | None = None,
    ) -> None:
        if inner is not None and not isinstance(inner, BasePruner):
            raise DeadlineError(f"inner must be a pruner of Optuna, but got {inner!r}.")
        plain = Resources(max_resource=max_resource, n_trials=n_trials)  # checks them
        self._deadline = parse_deadline(deadline)
        if self._deadline.at is not None and self._deadline.at <= time.time():
            _logger.warning(
                "The deadline %s has passed; only an extended study continues.",
                self._deadline,
            )
        self._inner = inner
        self._given = Given(
            parameters={"max_resource": plain.max_resource, "n_trials": plain.n_trials}
        )
        self._extend = extend
        self._storage = None if storage is None else given_url(storage)
        self._start(ProcessClock())

    def _start(self, clock: ProcessClock) -> DeadlinePruner:
        """Begin to count the time by a clock; tests inject theirs."""
        self.clock = clock
        self._constructed = clock.now()
        self._forget()
        return self

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether the trial should end after its newest report.

        At most one statement between rungs and two at a rung, whatever the number of trials.

        Args:
            study: The study.
            trial: The trial, as it was when it reported.

        Raises:
            DeadlineConflict: The study has another deadline.
            DeadlineError: The deadline has passed, or the study has several objectives.
            UnsupportedStorage: The storage is not SQL, and ``storage`` is not given.
            StudyGone: The study was deleted.
        """
        step = trial.last_step
        if step is None:
            return False
        tracker = self._tracker(study)
        pace = tracker.reported(trial, step)
        if self._inner is None:
            reason = tracker.check(study, trial)
        else:
            tracker.refresh()
            reason = type(self._inner).__name__ if self._inner.prune(study, trial) else None
        if tracker.finished(trial):
            reason = None
        if math.isnan(trial.intermediate_values[step]):
            reason = "the report is not a number"
        if tracker.is_too_late(trial.number, pace):
            reason = OUT_OF_TIME
        if reason is None:
            return False
        self._stop_if_over(study)
        if study.pruner is self:  # another pruner around it may keep the trial
            storage_of(study).set_trial_user_attr(id_of_trial(trial), PRUNED_BECAUSE, reason)
        return True

    def _prune_late(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether the deadline ends the trial, for a pruner around this one."""
        if late := self._is_too_late(study, trial):
            storage_of(study).set_trial_user_attr(id_of_trial(trial), PRUNED_BECAUSE, OUT_OF_TIME)
        return late

    def out_of_time(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether the trial should end with the value it has, which is not elimination.

        Takes no statement while time is left. Before it returns True, it reads the deadline again,
        since another process may have moved it.

        Returns:
            True if its next report would come after the deadline, or if it has trained for
            ``max_resource`` steps.
        """
        if trial.last_step is not None and self._tracker(study).finished(trial):
            self._tracker(study).reported(trial, trial.last_step)
            return True
        return self._is_too_late(study, trial)

    def _is_too_late(self, study: Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        if step is None:
            return False
        tracker = self._tracker(study)
        pace = tracker.reported(trial, step)
        if not tracker.is_too_late(trial.number, pace):
            return False
        tracker.refresh()
        late = tracker.is_too_late(trial.number, pace)
        if late:
            self._stop_if_over(study)
        return late

    def _situation(self, study: Study) -> tuple[float, set[int]]:
        """Seconds to the deadline, and the trials of this process that have asked.

        Stores nothing: zero seconds and no trial, if none has asked.
        """
        with self._lock:
            tracker = self._trackers.get(storage_of(study), {}).get(id_of(study))
        if tracker is None:
            return 0.0, set()
        tracker.refresh()
        return tracker.time_left(), tracker.numbers

    def _stop_if_over(self, study: Study) -> bool:
        """End ``study.optimize`` if a new trial of this process would hardly report in time.

        Returns:
            Whether it has ended: once it has, it stays so for trials that end later in other
            threads, whatever they say about paces.
        """
        tracker = self._tracker(study)
        needed, left = tracker.new_trial_needs(), tracker.time_left()
        over = left < needed
        if over:
            with suppress(RuntimeError):  # of ask and tell, which has no loop to end
                study.stop()
                returns_at_once(study)
        if is_stopping(study) and not tracker.stopped and tracker.is_early(left):
            _logger.warning(
                "study.optimize ends %s before the deadline: %s.",
                format_duration(left),
                f"a new trial needs {format_duration(needed)} to its first report"
                if over
                else f"Study.stop was called, by the sampler ({study.sampler}) because nothing is "
                "left to search, by the objective or by another callback",
            )
        tracker.stopped = is_stopping(study)
        tracker.over = tracker.stopped and (over or tracker.over)
        return over or tracker.over

    def _is_over(self, study: Study) -> bool:
        """Whether a new trial would hardly report before the deadline; reads it again."""
        tracker = self._tracker(study)
        tracker.refresh()
        return tracker.time_left() < tracker.new_trial_needs()

    def _trial_ends(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> bool:
        """End ``study.optimize`` after the last trial, for objectives that never ask.

        :class:`~optuna_deadline.DeadlineSampler` calls it; the arguments are those of
        :meth:`optuna.samplers.BaseSampler.after_trial`.

        Returns:
            Whether the study is over in this process.
        """
        tracker = self._tracker(study)
        tracker.ends(trial, state, values)
        if in_optimize_loop(study) and not tracker.warned:
            self._watch.trial_ended(trial, tracker.time_left())
        if tracker.time_left() < tracker.new_trial_needs():
            tracker.refresh()  # another process may have moved the deadline
        return self._stop_if_over(study)

    def _admit(self, study: Study, trial: FrozenTrial) -> bool:
        """Raise an error if the first trial of this process would come too late.

        Later trials take no statement: a trial that starts near the deadline ends at its first
        report.

        Args:
            study: The study.
            trial: The trial that begins.

        Returns:
            Whether it is the first.

        Raises:
            DeadlineConflict: The study has another deadline.
            DeadlineError: The deadline has passed, or comes before the trial could report; or the
                study has several objectives.
            UnsupportedStorage: The storage is not SQL, and ``storage`` is not given.
            StudyGone: The study was deleted.
        """
        joined = self._joined(study) is not None
        try:
            tracker = self._tracker(study)
        except DeadlinePassed as error:
            raise _advised(error, study) from None
        looped = in_optimize_loop(study)
        if joined and (looped or not tracker.stopped):
            if not looped and (left := tracker.time_left_at_last()) <= 0:
                self._watch.asked_late(trial, left)
            return False
        left, quickest = tracker.time_left_at_last(), _quickest_pace(study)
        if left > 0 and left >= quickest:
            return True
        if left <= 0:
            raise _advised(study_terms.over(tracker.terms), study)
        raise _advised(study_terms.too_late(tracker.terms, left, quickest), study)

    def _joined(self, study: Study) -> StudyTracker | None:
        """The tracker of ``study`` if this process has one."""
        with self._lock:
            return self._trackers.get(storage_of(study), {}).get(id_of(study))

    def _read_again(self, study: Study) -> None:
        """Read the deadline that this process has moved."""
        if (tracker := self._joined(study)) is not None:
            tracker.refresh()

    def _terms(self, study: Study) -> Terms:
        """The study's terms as this process last read them; the first call stores them."""
        self._watch.close()
        return self._tracker(study).terms

    def _tracker(self, study: Study) -> StudyTracker:
        """The tracker of ``study`` in this process; the first call stores or joins its terms."""
        from optuna_deadline.pruners._wrapped import end_at_deadline

        end_at_deadline(study, self)
        with self._lock:
            trackers = self._trackers.setdefault(storage_of(study), {})
            if id_of(study) not in trackers:
                database = open_table(study, self._storage)
                terms = agreement.fix(
                    database,
                    study,
                    self._deadline,
                    self._given,
                    plain=True,
                    extend=self._extend,
                    elapsed=self.clock.now() - self._constructed,
                )
                trackers[id_of(study)] = StudyTracker(database, terms, self.clock)
            return trackers[id_of(study)]

    def _forget(self) -> None:
        # By storage, since studies in memory all begin at id 0.
        self._trackers: weakref.WeakKeyDictionary[BaseStorage, dict[int, StudyTracker]]
        self._trackers = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        real = type(self.clock) is ProcessClock
        left = self._deadline.instant(time.time()) - time.time() if real else None
        if left is not None and self._deadline.at is None:
            left -= self.clock.now() - self._constructed
        self._watch = DeadlineWatch(self, left)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_trackers"], state["_lock"], state["_watch"]
        # Another process's monotonic clock may count from elsewhere.
        state["_constructed"] = self.clock.now() - self._constructed
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._constructed = self.clock.now() - state["_constructed"]
        self._forget()


def _quickest_pace(study: Study) -> float:
    """Seconds per report in the fastest trial; 0 until a trial has ended."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return min(
        (
            trial.duration.total_seconds() / max(1, len(trial.intermediate_values))
            for trial in ended
            if trial.duration is not None
        ),
        default=0.0,
    )


def _advised(error: DeadlineError, study: Study) -> DeadlineError:
    """An error with what to do where this process has trained trials, with another pruner."""
    if not trained_here(study):
        return error
    return type(error)(
        f"{error} This process has trained for the study before: create or load the study once, "
        "before the loop, and study.optimize returns without an error."
    )
