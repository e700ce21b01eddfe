"""What one process knows of one study: its terms, the database's time, the paces of its trials."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import sqlalchemy as sa
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.allocation.sql import studies as _rung_rows
from optuna_deadline.allocation.sql.database.engine import autocommit
from optuna_deadline.errors import StudyGone
from optuna_deadline.forecasting.reporting import ReportPace, known_startup
from optuna_deadline.pruners._clock import Clock
from optuna_deadline.pruners._optuna_rules import optuna_rule
from optuna_deadline.pruners._rung_rule import RungRule
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.deadlines import format_duration

_logger = logging.getLogger(__name__)
_TRIALS_KEPT = 1024
_TRIALS_ASKED = 32
_ENDINGS_KEPT = 5
_UNMEASURED_ENDING = 0.1  # seconds to tell Optuna of a trial's end, until it is measured


@dataclass
class _TrialPace:
    """One trial of this process: its number and pace, and how many rungs it has recorded."""

    number: int
    pace: ReportPace
    recorded: int = 0


class StudyTracker:
    """The state of one study in one process; safe to share between threads.

    Attributes:
        terms: The study's terms as last read.
        joined: When this process began to use them, by the database's clock.
        stopping: Whether the gate has ended ``study.optimize`` here.
    """

    def __init__(self, engine: sa.Engine, terms: Terms, clock: Clock) -> None:
        self.engine = engine
        self.terms = terms
        self.joined = terms.read
        self.stopping = False
        parameters = terms.parameters
        self.rungs = RungRule(
            min_resource=parameters.get("min_resource") or 1,
            reduction_factor=parameters.get("reduction_factor") or 4,
            max_resource=parameters.get("max_resource"),
        )
        self._clock = clock
        self._ahead = terms.read - clock.now()
        self._trials: OrderedDict[int, _TrialPace] = OrderedDict()
        self._lock = threading.Lock()
        self._endings = deque([_UNMEASURED_ENDING], maxlen=_ENDINGS_KEPT)
        self._silent: deque[float] = deque(maxlen=_TRIALS_ASKED)
        self._warned = False
        self._warned_of_unproven = False

    def time_left(self) -> float:
        """Seconds to the deadline; negative after it."""
        return self.terms.deadline - (self._clock.now() + self._ahead)

    def reported(self, trial: FrozenTrial, step: int) -> ReportPace:
        """Take note of a report at the time it is first seen."""
        now = self._clock.now()
        with self._lock:
            life = self._trials.get(trial._trial_id)
            if life is None:
                age = self._clock.since(trial.datetime_start) if trial.datetime_start else 0.0
                life = self._trials[trial._trial_id] = _TrialPace(
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

    @property
    def seconds_without_report(self) -> list[float]:
        """Seconds that the newest trials took that this process ended without seeing a report."""
        with self._lock:
            return list(self._silent)

    def ended(self, trial: FrozenTrial) -> None:
        """Measure how long a trial took from its last report until Optuna had its value."""
        with self._lock:
            if (life := self._trials.get(trial._trial_id)) is not None:
                self._endings.append(max(0.0, self._clock.now() - life.pace.last_at))
            elif trial.datetime_start is not None and trial.state is not TrialState.FAIL:
                self._silent.append(self._clock.since(trial.datetime_start))

    @property
    def ending_seconds(self) -> float:
        """Seconds that a trial takes to end: the longest of the newest five."""
        with self._lock:
            return max(self._endings)

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

    def check(self, trial: FrozenTrial, step: int) -> bool:
        """Record the trial at the rungs it has reached, and say whether one eliminates it.

        One statement for the deadline and the cutoffs of all rungs passed, one more at a rung.
        """
        passed = self.rungs.passed(step)
        with autocommit(self.engine) as connection:
            self._record(connection, trial, passed)
            rows = self._read_rungs(connection, trial.number, passed)
        return any(
            self.rungs.eliminates(row.better, row.total) for row in rows if row.rung is not None
        )

    @cached_property
    def optuna_rule(self) -> BasePruner | None:
        """Optuna's pruner for the study's policy; None where the rungs decide."""
        return optuna_rule(self.terms.policy, self.terms.parameters)

    def refresh(self) -> None:
        """Read the deadline and the gate anew: another process may have moved them."""
        with autocommit(self.engine) as connection:
            self._read_rungs(connection, number=-1, passed=0)

    def _record(self, connection: sa.Connection, trial: FrozenTrial, passed: int) -> None:
        with self._lock:
            life = self._trials.get(trial._trial_id)
            known = life.recorded if life else 0
        if passed > known:
            reports: Mapping[int, float] = trial.intermediate_values
            values = self.rungs.values_to_record(reports, range(known, passed))
            try:
                _rung_rows.record(connection, self.terms.study_id, trial.number, values)
            except sa.exc.IntegrityError:
                raise self._study_gone() from None
            with self._lock:
                if life:
                    life.recorded = passed

    def _read_rungs(
        self, connection: sa.Connection, number: int, passed: int
    ) -> list[sa.Row[Any]]:
        rows = _rung_rows.view(
            connection,
            self.terms.study_id,
            number,
            passed=passed,
            maximize=self.terms.maximize,
        )
        if not rows:
            raise self._study_gone()
        first = rows[0]
        with self._lock:
            self.terms = replace(
                self.terms,
                deadline=first.deadline,
                gate_closed=first.gate_closed,
                read=first.now,
            )
            # Forward only: a suspended machine's monotonic clock falls behind.
            self._ahead = max(self._ahead, first.now - self._clock.now())
        return rows

    def _study_gone(self) -> StudyGone:
        return StudyGone(f"The study {self.terms.name!r} was deleted; create it again.")

    def _warn_of_unproven(self, number: int, pace: ReportPace, left: float) -> None:
        if not self._warned_of_unproven and known_startup(self.paces()) is None:
            self._warned_of_unproven = True
            _logger.warning(
                "Trial %d took %s to its first report and %s are left: it goes on, since one "
                "report is no pace; if the next takes as long, it comes %s after the deadline.",
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
