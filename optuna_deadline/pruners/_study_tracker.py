"""The state of one study in one process: terms, database time, and the paces of its trials."""

from __future__ import annotations

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import TypeVar

import sqlalchemy as sa
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline._optuna import id_of_trial
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.clock import SteadyDeadline, uptime
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.table.deadlines import move_with_clock
from optuna_deadline.errors import StudyGone
from optuna_deadline.forecasting.reporting import (
    ReportPace,
    known_startup,
    seconds_of_new_trial,
    step_before,
    trained_steps,
)
from optuna_deadline.planning.sampling import cells_to_begin, choices_to_begin
from optuna_deadline.policies.measured_halving import TimeLeft
from optuna_deadline.pruners._clock import ProcessClock
from optuna_deadline.pruners._rungs import KnownRungs, values_at_rungs
from optuna_deadline.study.rows import ANY_STUDY, record
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.deadlines import clock_words, format_duration

_logger = logging.getLogger(__name__)
_TRIALS_KEPT = 1024
_TRIALS_ASKED = 32
_ENDINGS_KEPT = 5
_EARLY = 0.1  # of the time that a process has, unused at its end
_UNMEASURED_ENDING = 0.1  # seconds to tell Optuna of a trial's end, until it is measured
_Value = TypeVar("_Value")


@dataclass
class _TrialPace:
    """One trial of this process: its number and pace, and how many rungs it has recorded."""

    number: int
    pace: ReportPace
    recorded: int = 0
    ended: bool = False


class StudyTracker:
    """The state of one study in one process; safe to share between threads.

    Attributes:
        terms: The study's terms as last read.
        joined: When this process began to use them, by the database's clock.
        stopped: Whether ``study.optimize`` ends here.
    """

    def __init__(self, database: Database, terms: Terms, clock: ProcessClock) -> None:
        self.database = database
        self.terms = terms
        self.joined = terms.read
        self.stopped = False
        self.over = False  # whether the deadline has ended that loop
        self._max_resource: int | None = terms.parameters.get("max_resource")
        self._n_trials: int | None = terms.parameters.get("n_trials")
        self._rungs = KnownRungs(terms)
        self._longest = 0  # reports of a trial that ended by itself
        self._to_start: tuple[int, int | None] = (-1, None)  # known since which trial
        self._clock = clock
        self._ahead = terms.read - clock.now()
        self._stepped = database.clock.stepped  # to which the line before refers
        self._steady = SteadyDeadline(database.clock)
        self._steady.step(terms.deadline)
        self._trials: OrderedDict[int, _TrialPace] = OrderedDict()
        self._lock = threading.Lock()
        # By number, since the sampler and the gate both see a trial end.
        self._endings = {-1: _UNMEASURED_ENDING}
        self._silent: dict[int, float] = {}  # seconds of trials that ended without a report
        self._ending: dict[int, FrozenTrial] = {}
        self._warned = False
        self._warned_of_unproven = False

    @property
    def warned(self) -> bool:
        """Whether this process has warned that reports are too rare for the deadline."""
        return self._warned or self._warned_of_unproven

    def time_left(self) -> float:
        """Seconds to the deadline; negative after it."""
        return self.terms.deadline - (self._clock.now() + self._ahead)

    def time_left_at_last(self) -> float:
        """The time left, read again after the deadline: another process may have moved it."""
        if self.time_left() <= 0:
            self.refresh()
        return self.time_left()

    def reported(self, trial: FrozenTrial, step: int) -> ReportPace:
        """Record the time at which this process first sees a report."""
        now = self._clock.now()
        with self._lock:
            life = self._trials.get(id_of_trial(trial))
            if life is None:
                age = self._clock.since(trial.datetime_start) if trial.datetime_start else 0.0
                life = self._trials[id_of_trial(trial)] = _TrialPace(
                    trial.number, ReportPace(started=now - age)
                )
                if len(self._trials) > _TRIALS_KEPT:
                    self._trials.popitem(last=False)
            life.pace = life.pace.reported(step, now)
            return life.pace

    def paces(self) -> list[ReportPace]:
        """The paces of the newest trials of this process, in the order of their first reports."""
        with self._lock:
            newest = islice(reversed(self._trials.values()), _TRIALS_ASKED)
            return [life.pace for life in newest][::-1]

    @property
    def numbers(self) -> set[int]:
        """The newest trials of this process that have reported."""
        with self._lock:
            return {life.number for life in self._trials.values()}

    def new_trial_needs(self) -> float:
        """Seconds that a new trial needs to its first report, or to its end without a report."""
        paces = self.paces()
        with self._lock:
            silent = list(self._silent.values())
        return seconds_of_new_trial(paces, silent, self._spare)

    @property
    def _spare(self) -> float:
        return _EARLY * (self.terms.deadline - self.joined)

    def is_early(self, left: float) -> bool:
        """Whether ``left`` seconds are over a tenth of the time that this process had."""
        return left > self._spare

    @property
    def ending(self) -> dict[int, FrozenTrial]:
        """By number, the newest trials as they end; some may still be RUNNING in the storage."""
        with self._lock:
            return dict(self._ending)

    def ends(self, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Record how a trial ends, before the storage knows it, and how long that took."""
        copied = copy.copy(trial)
        copied.state, copied.values = state, values
        with self._lock:
            _keep_newest(self._ending, trial.number, copied, _TRIALS_ASKED)
            if state is TrialState.COMPLETE and self.time_left() > 0:
                self._longest = max(self._longest, len(trial.intermediate_values))
            if (life := self._trials.get(id_of_trial(trial))) is not None:
                life.ended = True
                seconds = max(0.0, self._clock.now() - life.pace.last_at)
                _keep_newest(self._endings, trial.number, seconds, _ENDINGS_KEPT)
            elif trial.datetime_start is not None and state is not TrialState.FAIL:
                seconds = self._clock.since(trial.datetime_start)
                _keep_newest(self._silent, trial.number, seconds, _TRIALS_ASKED)

    @property
    def ending_seconds(self) -> float:
        """Seconds that a trial takes to end: the longest of the newest five."""
        with self._lock:
            return max(self._endings.values())

    def is_too_late(self, number: int, pace: ReportPace) -> bool:
        """Whether the trial could not report once more and end before the deadline."""
        if not self._warned and not pace.recent:
            self._warn_of_short(number, pace)
        left = self.time_left()
        others = [] if pace.recent else [one for one in self.paces() if one is not pace]
        # From the report on, not from this call: asking twice answers the same.
        until_end = (
            pace.last_at + pace.next_report(others) + self.ending_seconds - self._clock.now()
        )
        late = left < max(0.0, until_end)
        if not late and not pace.recent and left < pace.first_seconds:
            self._warn_of_unproven(number, pace, left)
        return late

    def check(self, study: Study, trial: FrozenTrial) -> str | None:
        """Record the trial at the rungs that it has reached; return why one eliminates it.

        Takes one statement for the deadline and the rungs, and a second one at a new rung.
        """
        reports: Mapping[int, float] = trial.intermediate_values
        with self.database.each_alone(ANY_STUDY) as tx:
            self._record(tx, trial)
            self._read_rungs(tx)
        return self._rungs.reason(
            trial.number, reports, lambda: self._met_by_a_new_trial(study, trial)
        )

    def finished(self, trial: FrozenTrial) -> bool:
        """Whether a trial has trained as long as it may."""
        steps = trial.intermediate_values
        trained = trained_steps(max(steps), min(steps))
        return self._max_resource is not None and trained >= self._max_resource

    def _met_by_a_new_trial(self, study: Study, trial: FrozenTrial) -> TimeLeft:
        """The reports that a trial which starts now could make, at the pace of this process."""
        paces = self.paces()
        intervals = [pace.interval for pace in paces if pace.interval is not None]
        seconds = median(intervals or [pace.first_seconds for pace in paces])
        startup = (known_startup(paces) or 0.0) if intervals else 0.0
        with self._lock:
            training = sum(not life.ended for life in self._trials.values())
        return TimeLeft.at_pace(
            seconds,
            left=self.time_left() - self.ending_seconds,
            startup=startup,
            horizon=self._horizon(trial),
            to_start=self._left_to_start(study, trial),
            slots=training,
        )

    def _horizon(self, trial: FrozenTrial) -> int | None:
        """Reports of a full training: from ``max_resource``, else of the longest trial."""
        if self._max_resource is None:
            return self._longest or None
        steps = trial.intermediate_values.keys()
        stride = (max(steps) - step_before(steps)) / len(steps)
        return max(1, round(self._max_resource / stride))

    def _left_to_start(self, study: Study, trial: FrozenTrial) -> int | None:
        """Trials that may still start: configurations that are left, and trials of the study.

        Counted again at each new trial.
        """
        if trial.number > self._to_start[0]:
            left = cells_to_begin(study)
            if left is None:
                left = choices_to_begin(study, trial)
            if self._n_trials is not None:
                of_study = max(0, self._n_trials - trial.number - 1)
                left = of_study if left is None else min(left, of_study)
            self._to_start = trial.number, left
        return self._to_start[1]

    def refresh(self) -> None:
        """Read the deadline anew: another process may have moved it."""
        with self.database.each_alone(ANY_STUDY) as tx:
            self._read_rungs(tx)

    def _record(self, tx: Transaction, trial: FrozenTrial) -> None:
        values = values_at_rungs(trial.intermediate_values)
        with self._lock:
            life = self._trials.get(id_of_trial(trial))
            known = life.recorded if life else 0
        if new := {rung: values[rung] for rung in range(known, len(values))}:
            try:
                record(tx, self.terms.study_id, trial.number, new)
            except sa.exc.IntegrityError:
                raise StudyGone.named(self.terms.name) from None
            with self._lock:
                if life:
                    life.recorded = len(values)

    def _read_rungs(self, tx: Transaction) -> None:
        sent = uptime()
        first = self._rungs.read(tx)
        if first is None:
            raise StudyGone.named(self.terms.name)
        self.database.clock.record_reading(first.now, sent, uptime())
        deadline, step = first.deadline, self._steady.step(first.deadline)
        if step and move_with_clock(tx, self.terms.study_id, step, deadline):
            deadline += step
            _logger.warning("%s.", clock_words(step).capitalize())
        elif step:
            return  # another process has moved it
        with self._lock:
            if deadline == self.terms.deadline:  # a slow answer makes it less
                self._ahead = max(self._ahead, first.now - self._clock.now())
            else:
                self._ahead += self.database.clock.stepped - self._stepped
                self._stepped = self.database.clock.stepped
            self.terms = replace(self.terms, deadline=deadline, read=first.now)

    def _warn_of_unproven(self, number: int, pace: ReportPace, left: float) -> None:
        if not self._warned_of_unproven and known_startup(self.paces()) is None:
            self._warned_of_unproven = True
            _logger.warning(
                "Trial %d took %s to its first report and %s are left: it continues, since one "
                "report is not enough to estimate the step time; if the next takes as long, "
                "it comes %s after the deadline.",
                number,
                format_duration(pace.first_seconds),
                format_duration(left),
                format_duration(pace.first_seconds - left),
            )

    def _warn_of_short(self, number: int, pace: ReportPace) -> None:
        whole = self.terms.deadline - self.terms.started
        if pace.first_seconds > whole:
            self._warned = True
            _logger.warning(
                "Trial %d took %s to its first report, longer than the %s from start to deadline; "
                "report more often, or give a later deadline.",
                number,
                format_duration(pace.first_seconds),
                format_duration(whole),
            )


def _keep_newest(values: dict[int, _Value], number: int, value: _Value, newest: int) -> None:
    """Set a trial's value and forget those that were set longest ago."""
    values.pop(number, None)
    values[number] = value
    for old in list(values)[:-newest]:
        del values[old]
