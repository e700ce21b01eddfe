"""Regimes of a training: stretches at one pace, found from its reports alone.

A training whose batch doubles, whose precision changes or whose sequences get longer has another
pace from then on, for good. What it trained before says nothing about the time that it still
needs, and a comparison of gangs across such a change says nothing about S(k). The rule is ours.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

#: So many reports in a row begin a regime if each deviates, to one side, by at least this factor
#: and this multiple of the usual deviation from the pace of the regime.
_IN_A_ROW, _LEAST, _DEVIATIONS = 3, math.log(1.2), 1.75
_NEAR = 0.1  # of the steps before a change: trials that change so near to each other change alike


class Stretch(NamedTuple):
    """What was trained on a number of slots."""

    steps: float = 0.0
    seconds: float = 0.0

    def more(self, other: Stretch, sign: int = 1) -> Stretch:
        """This and another one together, or without it."""
        return Stretch(self.steps + sign * other.steps, self.seconds + sign * other.seconds)


class PaceChange(NamedTuple):
    """A change of regime."""

    step: float  #: the last step of the regime before
    factor: float  #: of the seconds of a step


class _Pace(NamedTuple):
    """The pace from one report to the next."""

    stretch: Stretch
    logarithm: float  # of the seconds of a step


@dataclass
class TrialRegimes:
    """The regimes of one trial, updated by report.

    Paces are compared on one number of slots only: there S(k) is not needed, which may be unknown.

    Attributes:
        changes: The number of changes that were found.
        stretches: What was trained in each regime, by slots; the present one is the last.
        first: The first change.
        step: The step of the last report.
    """

    changes: int = 0
    stretches: list[dict[int, Stretch]] = field(default_factory=lambda: [defaultdict(Stretch)])
    first: PaceChange | None = None
    step: int | None = None
    _slots: int = 0
    _trained: float = 0.0
    _usual: list[float] = field(default_factory=list)  # sorted logarithms of paces, on these slots
    _latest: deque[_Pace] = field(default_factory=deque)  # not in the usual ones yet

    def take(self, step: int, trained: float, slots: int) -> bool:
        """Record a report; returns whether it shows a new regime.

        Args:
            step: Its step; one that is not beyond the last says nothing.
            trained: Seconds of training until then, over all segments.
            slots: The slots on which it was trained.
        """
        before, since = self.step, trained - self._trained
        if not math.isfinite(trained) or (before is not None and step <= before):
            return False
        self.step, self._trained = step, trained
        if before is None or since <= 0:
            return False
        if slots != self._slots:
            self._slots = slots
            self._usual.clear()
            self._latest.clear()
        stretch = Stretch(float(step - before), since)
        self._count(-1, stretch)
        self._latest.append(_Pace(stretch, math.log(since / stretch.steps)))
        if len(self._latest) < _IN_A_ROW:
            return False
        if self._deviates():
            self._begin()
            return True
        insort(self._usual, self._latest.popleft().logarithm)
        return False

    def _deviates(self) -> bool:
        """Whether all of the latest reports deviate from the usual pace, to one side."""
        if len(self._usual) < _IN_A_ROW:
            return False
        middle = self._usual[len(self._usual) // 2]
        off = [pace.logarithm - middle for pace in self._latest]
        least = max(min(off), -max(off))
        if least <= _LEAST:  # nearly always
            return False
        spread = median(abs(one - middle) for one in self._usual) / 0.6745  # as of a normal law
        return least > _DEVIATIONS * spread

    def _begin(self) -> None:
        """Begin a regime with the latest reports."""
        middle = self._usual[len(self._usual) // 2]
        if self.first is None and self.step is not None:
            since = self.step - sum(pace.stretch.steps for pace in self._latest)
            new = median(pace.logarithm for pace in self._latest)
            self.first = PaceChange(since, math.exp(new - middle))
        self.changes += 1
        self.stretches.append(defaultdict(Stretch))
        for pace in self._latest:
            self._count(-2, pace.stretch, -1)
            self._count(-1, pace.stretch)
        self._usual = sorted(pace.logarithm for pace in self._latest)
        self._latest.clear()

    def _count(self, regime: int, stretch: Stretch, sign: int = 1) -> None:
        trained = self.stretches[regime]
        trained[self._slots] = trained[self._slots].more(stretch, sign)


def learn_schedule(trials: Collection[TrialRegimes]) -> PaceChange | None:
    """The change that all trials of a study come to: they run the same code.

    Known once three trials show it within a tenth of the steps before it, if at most as many have
    trained well beyond it without a change.
    """
    shown = [trial.first for trial in trials if trial.first is not None]
    if len(shown) < _IN_A_ROW:
        return None
    step = median(change.step for change in shown)
    alike = [change for change in shown if abs(change.step - step) <= _NEAR * step]
    beyond = (1 + _NEAR) * step
    others = sum(t.first is None and t.step is not None and t.step > beyond for t in trials)
    if len(alike) < _IN_A_ROW or others + len(shown) - len(alike) > len(alike):
        return None
    return PaceChange(step, median(change.factor for change in alike))


def change_ahead(trial: TrialRegimes | None, schedule: PaceChange | None) -> PaceChange | None:
    """The change that a trial still comes to, or has come to without a sign in its pace yet."""
    if schedule is None or trial is None or trial.step is None:
        return schedule
    return None if trial.changes or trial.step > (1 + _NEAR) * schedule.step else schedule
