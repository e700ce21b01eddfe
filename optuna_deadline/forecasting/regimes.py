"""Regimes of a training: stretches at one pace, as its reports name them or as they show.

A training whose batch doubles, whose precision changes or whose sequences get longer has another
pace from then on, for good. What it trained before says nothing about the time that it still
needs, and a comparison of gangs across such a change says nothing about S(k). A regime that a
report names begins at once; one without a name is found after three reports. The rule is ours.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import NamedTuple

#: So many reports in a row begin a regime if each deviates, to one side, by at least this factor
#: and this multiple of the usual deviation from the pace of the regime.
_IN_A_ROW, _LEAST, _DEVIATIONS = 3, math.log(1.2), 1.75
#: Changes are near to each other within this share of the steps before, or of a segment.
_NEAR = 0.1


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


def shifted(changes: Sequence[PaceChange], steps: int) -> Sequence[PaceChange]:
    """Changes by trained steps, where those of the study count from elsewhere."""
    return tuple(PaceChange(change.step + steps, change.factor) for change in changes)


def seconds_between(
    step: float, later: float, pace: float, changes: Sequence[tuple[float, float]] = ()
) -> float:
    """Seconds from one step to a later one, at a pace that changes on the way.

    Args:
        step: The first step.
        later: The later one; 0 seconds if it is not later.
        pace: Seconds of a step now.
        changes: After which steps a step takes how many times as long as before.
    """
    seconds = 0.0
    for change, factor in changes:
        until = max(step, min(later, change))
        seconds, step, pace = seconds + (until - step) * pace, until, pace * factor
    return seconds + max(0.0, later - step) * pace


def step_after(
    seconds: float, step: float, pace: float, changes: Sequence[tuple[float, float]] = ()
) -> float:
    """The step that a trial reaches from another one in a number of seconds; the inverse."""
    for change, factor in changes:
        needed = max(0.0, change - step) * pace
        if seconds <= needed:
            break
        seconds, step, pace = seconds - needed, max(step, change), pace * factor
    return step + seconds / pace


class _Pace(NamedTuple):
    """The pace from one report to the next."""

    stretch: Stretch
    logarithm: float  # of the seconds of a step


@dataclass
class TrialRegimes:
    """The regimes of one trial, updated by report.

    Paces are compared on one number of slots only: there S(k) is not needed, which may be unknown.

    Attributes:
        changes: Its changes so far; None for one with reports on one side only.
        stretches: What was trained in each regime, by slots; the present one is the last.
        step: The step of the last report.
    """

    changes: list[PaceChange | None] = field(default_factory=list)
    stretches: list[dict[int, Stretch]] = field(default_factory=lambda: [defaultdict(Stretch)])
    step: int | None = None
    _name: str | None = None  # of the present regime
    _named: dict[str | None, dict[int, Stretch]] = field(default_factory=dict)
    _next: str | None = None  # of a regime whose first report is not counted yet
    _begun: list[tuple[float, dict[int, Stretch]]] = field(default_factory=list)  # seconds, regime
    _keeps: bool = False  # its pace, where others have changed
    _slots: int = 0
    _trained: float = 0.0
    _usual: list[float] = field(default_factory=list)  # sorted logarithms of paces, on these slots
    _latest: list[_Pace] = field(default_factory=list)  # not in the usual ones yet: few

    def take(
        self,
        step: int,
        trained: float,
        slots: int,
        name: str | None = None,
        due: PaceChange | None = None,
    ) -> bool:
        """Record a report; returns whether it shows a new regime.

        Args:
            step: Its step; one that is not beyond the last says nothing.
            trained: Seconds of training until then, over all segments.
            slots: The slots on which it was trained.
            name: The regime that begins after the report before; None if none is named.
            due: The next change that other trials have shown. It counts where the trial has too
                few reports on these slots to show it.
        """
        self._next = name or self._next
        before, since = self.step, trained - self._trained
        if not math.isfinite(trained) or (before is not None and step <= before):
            return False
        self.step, self._trained = step, trained
        if before is None:
            self._name, self._slots = self._next, slots
            self._named[self._name] = self.stretches[-1]
            self._begun.append((0.0, self.stretches[-1]))
        if before is None or since <= 0:
            return False
        if resized := slots != self._slots:
            self._slots = slots
            self._usual.clear()
            self._latest.clear()
        stretch = Stretch(float(step - before), since)
        pace = _Pace(stretch, math.log(since / stretch.steps))
        passed = due is not None and step > due.step and not self._keeps
        hidden = passed and len(self._usual) < _IN_A_ROW
        if begins := hidden or self._next != self._name:
            self._begin(before, trained - since, [] if resized else [pace.logarithm])
        if resized:  # part of it may have been trained on the former slots
            return begins
        self._count(-1, stretch)
        self._latest.append(pace)
        if begins or len(self._latest) < _IN_A_ROW:
            return begins
        if self._deviates():
            found = list(self._latest)
            start = step - sum(pace.stretch.steps for pace in found)
            seconds = sum(pace.stretch.seconds for pace in found)
            self._begin(start, trained - seconds, [pace.logarithm for pace in found])
            for pace in found:
                self._count(-2, pace.stretch, -1)
                self._count(-1, pace.stretch)
            self._usual = sorted(pace.logarithm for pace in found)
            return True
        insort(self._usual, self._latest.pop(0).logarithm)
        shown = step - sum(pace.stretch.steps for pace in self._latest)
        self._keeps |= due is not None and shown > (1 + _NEAR) * due.step
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

    def _begin(self, last_step: float, seconds: float, new: Sequence[float]) -> None:
        """Begin a regime, or return to one of the same name, with the paces of its reports."""
        named, self._name = self._next != self._name, self._next
        old = self._usual or [pace.logarithm for pace in self._latest]
        known = old and new
        change = PaceChange(last_step, math.exp(median(new) - median(old))) if known else None
        self.changes.append(change)
        trained = self._named.get(self._name) if named else None
        if trained is None:
            trained = defaultdict(Stretch)
        self.stretches = [one for one in self.stretches if one is not trained] + [trained]
        self._named[self._name] = trained
        self._begun.append((seconds, trained))
        self._usual.clear()
        self._latest.clear()

    def regime_within(self, start: float, end: float) -> dict[int, Stretch] | None:
        """The regime of the training between two of its seconds; None if it changed on the way.

        A change in the first or last tenth does not count: a segment ends some steps after its
        last report.
        """
        edge = _NEAR * (end - start)
        start, end = start + edge, end - edge
        if any(start < seconds < end for seconds, _ in self._begun):
            return None
        return next((known for seconds, known in reversed(self._begun) if seconds <= start), None)

    def _count(self, regime: int, stretch: Stretch, sign: int = 1) -> None:
        trained = self.stretches[regime]
        trained[self._slots] = trained[self._slots].more(stretch, sign)


def learn_schedule(trials: Collection[TrialRegimes]) -> tuple[PaceChange, ...]:
    """The changes that all trials of a study come to, in their order: they run the same code.

    A change is known once three trials show it within a tenth of the steps before it, if at most
    as many have trained well beyond it without a change.
    """
    found: list[PaceChange] = []
    for place in count():
        known = [trial.changes[place] for trial in trials if len(trial.changes) > place]
        shown = [change for change in known if change is not None]
        if len(shown) < _IN_A_ROW:
            break
        step = median(change.step for change in shown)
        alike = [change for change in shown if abs(change.step - step) <= _NEAR * step]
        others = sum(len(t.changes) == place and _is_beyond(t, step) for t in trials)
        if len(alike) < _IN_A_ROW or others + len(shown) - len(alike) > len(alike):
            break
        found.append(PaceChange(step, median(change.factor for change in alike)))
    return tuple(found)


def changes_ahead(
    trial: TrialRegimes | None, schedule: Sequence[PaceChange]
) -> Sequence[PaceChange]:
    """The changes that a trial comes to; one may be behind it that its pace does not show."""
    ahead = schedule[len(trial.changes) :] if trial is not None else schedule
    return () if trial is not None and ahead and _is_beyond(trial, ahead[0].step) else ahead


def _is_beyond(trial: TrialRegimes, step: float) -> bool:
    return trial.step is not None and trial.step > (1 + _NEAR) * step
