"""The present state of a study, from which its rest is simulated."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.errors import DeadlineError, spelled
from optuna_deadline.forecasting.learning_curves import Curve, Doublings, learn_doublings
from optuna_deadline.forecasting.regimes import seconds_between, shifted
from optuna_deadline.forecasting.reporting import trained_steps
from optuna_deadline.history.forecast import first_step, known_curves
from optuna_deadline.history.records import History
from optuna_deadline.history.series import Measured, measure

_REPORTS = 400  # of a full training, at most; a longer one is thinned out
_ALMOST = 0.99  # of the way to the next report, which a running trial has not reached


@dataclass(frozen=True)
class InitialState:
    """A study with a deadline in the future and measurements.

    Attributes:
        history: The study's history.
        measured: The speed of its trials, and the cost of starting and stopping.
        curves: By trial, larger is better.
        machines: Slots that the study may use, by live worker.
        reach: The latest instant of any simulation.
    """

    history: History
    measured: Measured
    curves: Mapping[int, Curve]
    machines: Mapping[str, int]
    reach: float

    @classmethod
    def of(cls, history: History, later: float = 0.0) -> InitialState:
        """The present state of a study.

        Args:
            history: The study's.
            later: Seconds after its deadline until which it may be simulated.

        Raises:
            DeadlineError: The study has ended, or nothing is known that could continue.
        """
        if history.settled is not None or history.time_left + later <= 0:
            raise DeadlineError(
                f"{history.name} has ended, and nothing more will come: give it time first, with "
                + spelled(
                    "optuna_deadline.extend(study, '2h').",
                    f"'optuna-deadline set {shlex.quote(history.name)} --deadline 2h'.",
                )
            )
        if history.plain:
            raise DeadlineError(
                f"{history.name} is trained by study.optimize, which says nothing of its slots: "
                "what-ifs are for studies with optuna-deadline workers."
            )
        measured = measure(history.segments, history.reports, history.slots)
        curves = known_curves(history)
        if not set(curves) & set(measured.seconds):
            raise DeadlineError(
                f"No trial of {history.name} has trained and reported yet, so there is "
                "nothing to simulate: try again after the first reports."
            )
        reach = max(history.deadline, history.deadline + later)
        return cls(history, measured, curves, _machines(history), reach)

    @property
    def now(self) -> float:
        """Seconds since the study began."""
        return self.history.now - self.history.started

    @cached_property
    def model(self) -> Doublings:
        """The model of the study's curves."""
        return learn_doublings(self.curves.values())

    @cached_property
    def sources(self) -> list[int]:
        """The trials that new ones resemble: all with a curve and a pace."""
        return sorted(set(self.curves) & set(self.measured.seconds))

    @cached_property
    def usual_seconds(self) -> float:
        """Seconds of a step on one slot, the median of the trials."""
        return median(self.measured.seconds[number] for number in self.sources)

    def step_seconds(self, number: int) -> float:
        """Seconds of a step of one trial on one slot."""
        return max(1e-9, self.measured.seconds.get(number, self.usual_seconds))

    def report_seconds(self, number: int, new: bool) -> tuple[float, ...]:
        """Seconds of one slot to each report of a trial, or of a new one like it.

        Empty if no change of pace is known. Until now, a trial's steps count as its present ones.
        """
        schedule, pace = self.measured.schedule, self.step_seconds(number)
        if not schedule:
            return ()
        changes = self.measured.changes.get(number, ())
        if new:  # it begins as its model began
            pace /= math.prod(factor for _, factor in schedule[: len(schedule) - len(changes)])
            changes = schedule
        ahead = shifted(changes, self.shift)
        steps = [0.0, *self.reports(number)]
        to_each = [seconds_between(0.0, step, pace, ahead) for step in steps]
        return tuple(after - before for before, after in pairwise(to_each))

    @cached_property
    def planned_rows(self) -> dict[int, PlannedTrial]:
        """The trials by number."""
        return {planned.number: planned for planned in self.history.trials}

    @cached_property
    def every(self) -> int:
        """The usual steps between two reports; more if there are many reports."""
        steps = [curve.steps for curve in self.curves.values()]
        gaps = [int(b - a) for some in steps for a, b in pairwise(some)]
        usual = max(1, round(median(gaps))) if gaps else 1
        longest = max(self._horizon(number) for number in [*self.sources, *self.planned_rows])
        return max(usual, math.ceil(longest / _REPORTS))

    def reports(self, number: int) -> list[float]:
        """The steps of all reports of a trial's full training."""
        count = max(1, math.ceil(self._horizon(number) / self.every))
        return [float((place + 1) * self.every) for place in range(count)]

    def _horizon(self, number: int) -> float:
        """The last step of a trial: as its objective states, or as others' do."""
        planned, curve = self.planned_rows.get(number), self.curves.get(number)
        last = curve.steps[-1] if curve is not None else 0.0
        if planned is not None and planned.state == "complete" and last:
            return last
        if planned is not None and planned.horizon is not None:
            return max(last, planned.horizon + self.shift)
        if self._usual_horizon is not None:
            return max(last, self._usual_horizon)
        # Unknown: as far as it gets on the largest gang.
        gang = max([1, *self.machines.values()])
        fastest = max(self.measured.speedup(slots) for slots in range(1, gang + 1))
        return last + (self.reach - self.history.now) * fastest / self.step_seconds(number)

    @cached_property
    def _usual_horizon(self) -> float | None:
        known = [planned.horizon for planned in self.history.trials if planned.horizon is not None]
        given = self.history.parameters.get("max_resource")
        return max(known) + self.shift if known else given

    @cached_property
    def _saved(self) -> dict[int, float]:
        """By trial, the furthest step that any of its segments saved."""
        found: dict[int, float] = {}
        for row in self.history.segments:
            if row.position_to is not None:
                found[row.number] = max(found.get(row.number, 0.0), row.position_to)
        return found

    def position(self, planned: PlannedTrial) -> float:
        """The number of steps that a trial has trained so far."""
        saved = self._saved.get(planned.number, 0.0)
        curve = self.curves.get(planned.number)
        last = curve.steps[-1] if curve is not None else 0.0
        if planned.owner is None or curve is None:
            return max(saved, last)
        reported = max(row.at for row in self.history.curves_by_trial[planned.number])
        speed = self.measured.speedup(max(1, planned.slots)) / self.step_seconds(planned.number)
        since = min(_ALMOST * self.every, (self.history.now - reported) * speed)
        return max(saved, last + max(0.0, since))

    @cached_property
    def shift(self) -> int:
        """The offset from the study's own steps to trained steps."""
        return trained_steps(0, first_step(self.history))


def _machines(history: History) -> dict[str, int]:
    """The slots that each live worker has for the study; a gang does not cross workers."""
    mine = {
        row.id
        for row in history.workers
        if row.study_id == history.study_id and row.drained is None
    }
    usable = [slot for slot in history.slots if slot.lent_to == history.study_id]
    return dict(Counter(w for slot in usable for w in slot.offered_by if w in mine))
