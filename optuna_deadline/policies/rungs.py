"""Rungs of halving: the scores of trials at milestones, their ranks, and the cut.

Every policy and the plain pruner read the same table. They differ in where the milestones lie, in
what a trial's score at one is, and in what they conclude from the ranks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from optuna_deadline.policies.api import WORST, Report, TrialView
from optuna_deadline.policies.curve import extends

#: Assumed number of rungs until the length of a trial is known.
DEFAULT_RUNGS = 4


class Rung:
    """A milestone with the score that each trial recorded when it first reached it.

    A recorded score is never overwritten; the cut is the ``1 - 1 / reduction_factor`` quantile,
    linearly interpolated (as HyperSched's code has it).

    Attributes:
        milestone: In report steps, or in reports.
        recorded: The scores by trial.
        ranked: The best first, each as ``(-score, number)``.
        version: Changes with each record.
        memo: What was computed from its records: another rung, its version, and the result. None
            after a change.
    """

    __slots__ = (
        "_best", "_cut", "_reduction_factor", "memo", "milestone", "ranked", "recorded", "version",
    )  # fmt: skip

    def __init__(self, milestone: int, reduction_factor: int = 2) -> None:
        self.milestone = milestone
        self.recorded: dict[int, float] = {}
        self.ranked: list[tuple[float, int]] = []
        self._reduction_factor = reduction_factor
        self._cut: tuple[float | None] | None = None  # None until it is computed
        self._best: frozenset[int] | None = None  # likewise
        self.version = 0
        self.memo: tuple[Rung, int, Any] | None = None

    def record(self, number: int, score: float) -> None:
        """Record the score of a trial that has reached the rung."""
        self.recorded[number] = score
        insort(self.ranked, (-score, number))
        self._changed()

    def forget(self, number: int) -> None:
        """Delete a trial's record."""
        del self.ranked[bisect_left(self.ranked, (-self.recorded.pop(number), number))]
        self._changed()

    def _changed(self) -> None:
        self._cut = self._best = self.memo = None
        self.version += 1

    def better_than(self, score: float) -> int:
        """The number of scores above another."""
        return bisect_left(self.ranked, (-score, -1))

    @property
    def cutoff(self) -> float | None:
        """The cut; None while fewer than two trials have reached the rung."""
        if self._cut is None:
            self._cut = (self._compute_cutoff(),)
        return self._cut[0]

    def passed(self, number: int) -> bool:
        """Whether a trial's recorded score is at or above the present cut."""
        return (cutoff := self.cutoff) is None or self.recorded[number] >= cutoff

    def between(self, cut: float | None, other: float | None) -> list[int]:
        """Trials that pass at one of two cuts and not at the other."""
        low, high = sorted((self._passing(cut), self._passing(other)))
        return [number for _, number in self.ranked[low:high]]

    def _passing(self, cut: float | None) -> int:
        """The number that passes at a cut: the first of the ranking."""
        ranked = self.ranked
        return len(ranked) if cut is None else bisect_right(ranked, (-cut, math.inf))

    @property
    def best(self) -> frozenset[int]:
        """The best ``1 / reduction_factor``; a diverged trial is never among them."""
        if self._best is None:
            count = len(self.ranked) // self._reduction_factor
            best = [number for score, number in self.ranked[:count] if score < math.inf]
            self._best = frozenset(best)
        return self._best

    def _compute_cutoff(self) -> float | None:
        """The quantile as numpy interpolates it; numpy itself takes 100 times as long here."""
        ranked, last = self.ranked, len(self.ranked) - 1
        if last < 1:
            return None
        place = (1 - 1 / self._reduction_factor) * last
        below = min(int(place), last - 1)
        low, high = -ranked[last - below][0], -ranked[last - below - 1][0]
        if math.isinf(low) or math.isinf(high):
            # Interpolating next to an infinite score gives NaN: diverged trials rank below all.
            first, end = (
                bisect_left(ranked, (-math.inf, math.inf)),
                bisect_left(ranked, (math.inf, -1)),
            )
            if first == end:
                return None
            best, worst = -ranked[first][0] + 1.0, -ranked[end - 1][0] - 1.0
            low, high = min(max(low, worst), best), min(max(high, worst), best)
        part = place - below
        return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def milestones(min_resource: int, reduction_factor: int, max_resource: int) -> list[int]:
    """``min_resource * reduction_factor ** i`` up to ``max_resource``."""
    steps = []
    milestone = min_resource
    while milestone <= max_resource:
        steps.append(milestone)
        milestone *= reduction_factor
    return steps


def first_report(reports: Sequence[Report], milestone: int) -> Report:
    """The first report at or after a milestone that the trial has reached."""
    guess = milestone - reports[0].step  # right if every step is reported
    if 0 <= guess < len(reports) and (found := reports[guess]).step == milestone:
        return found
    return reports[bisect_left(reports, milestone, key=lambda report: report.step)]


def best_until(reports: Sequence[Report], milestone: int) -> float:
    """The best score until a step; the worst for a trial that has diverged there."""
    best = last = WORST
    for step, last, _ in reports:
        best = max(best, last)
        if step >= milestone:
            break
    return WORST if last == WORST else best


class RungRule(NamedTuple):
    """The rule by which reports are read at milestones."""

    extent: Callable[[Sequence[Report]], int]  #: how far they come
    score: Callable[[Sequence[Report], int], float]  #: their score at a milestone


def _last_step(reports: Sequence[Report]) -> int:
    return reports[-1].step


#: The first report at or after each step.
FIRST_REPORT = RungRule(_last_step, lambda reports, step: first_report(reports, step).score)
#: The best report until each step.
BEST_REPORT = RungRule(_last_step, best_until)
#: The report of each number: the first, the second, the fourth, ...
BY_NUMBER = RungRule(len, lambda reports, number: reports[number - 1].score)


class RungTable:
    """The rungs of a study, kept up from one snapshot to the next.

    It is a cache: a table that takes the same trials for the first time has the same rungs.

    Args:
        first: The lowest milestone.
        factor: From one milestone to the next, and the reduction factor.
        rule: How reports are read.

    Attributes:
        rungs: Lowest first; the highest has been reached by a trial.
        reports: What each trial that was taken had reported; nothing for a failed one.
    """

    def __init__(self, first: int, factor: int, rule: RungRule = FIRST_REPORT) -> None:
        self.rungs: list[Rung] = []
        self.reports: dict[int, Sequence[Report]] = {}
        self._first, self._factor, self._rule = first, factor, rule
        self._reached: dict[int, int] = {}  # on how many rungs each trial is recorded

    def milestone(self, place: int) -> int:
        """The milestone of a rung."""
        return self._first * int(self._factor**place)

    def update(self, trials: Iterable[TrialView], changed: set[int]) -> None:
        """Take the trials of these numbers, and those that were never taken."""
        for trial in trials:
            if trial.number in changed or trial.number not in self.reports:
                self.take(trial)

    def take(self, trial: TrialView) -> bool:
        """Record what a trial has reported since it was taken; returns whether a rung changed.

        A failed trial is forgotten, and one whose reports were replaced is recorded anew.
        """
        number, reports = trial.number, () if trial.state == "failed" else trial.reports
        known, reached = self.reports.get(number, ()), self._reached.get(number, 0)
        self.reports[number] = reports
        changed = bool(reached) and not extends(reports, known)
        if changed:
            self.forget(number, reached)
            reached = 0
        extent = self._rule.extent(reports) if reports else 0
        while reports and (milestone := self.milestone(reached)) <= extent:
            self.record(number, reached, self._rule.score(reports, milestone))
            reached, changed = reached + 1, True
        self._reached[number] = reached
        while self.rungs and not self.rungs[-1].recorded:
            self.rungs.pop()
        return changed

    def record(self, number: int, place: int, score: float) -> bool:
        """Record a trial's score at a rung; False where one is known, which stays."""
        while place >= len(self.rungs):
            self.rungs.append(Rung(self.milestone(len(self.rungs)), self._factor))
        if number in self.rungs[place].recorded:
            return False
        self.rungs[place].record(number, score)
        return True

    def forget(self, number: int, reached: int) -> None:
        """Delete a trial's records on the first ``reached`` rungs."""
        for rung in self.rungs[:reached]:
            rung.forget(number)


def build_rungs(
    trials: Iterable[TrialView], min_resource: int, reduction_factor: int
) -> list[Rung]:
    """The rungs as they stand, lowest first; failed trials are left out."""
    table = RungTable(min_resource, reduction_factor)
    table.update(trials, set())
    return table.rungs
