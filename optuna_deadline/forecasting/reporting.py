"""Paces of trials: the next report, and the final score of a new trial.

A sampler should learn from the score that a trial would reach if it started now: a configuration
that needs two hours is worth nothing with one hour left, and one that was stopped early is worth
what it would have reached. A curve is read at the step that its pace allows in the time left; if
it is shorter, it is continued by its doublings
(:mod:`optuna_deadline.forecasting.learning_curves`). This is our rule.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nsmallest
from itertools import accumulate
from statistics import fmean, median, median_low

from optuna_deadline.forecasting.learning_curves import Curve, learn_doublings

_KEPT = 5
_SAFETY = 1.1
#: The share of a single measurement that counts as pace until there is a second one: the first
#: trial of a process reads data and fills caches, the first step of any trial compiles.
UNPROVEN = 0.5
_LIKELY = 0.9  # of new trials report in the time that is expected of them


@dataclass(frozen=True)
class ReportPace:
    """When a trial reported; instants and intervals are seconds of one monotonic clock.

    Attributes:
        started: When the trial started.
        first_step: The step of the first report seen, None before it.
        first_at: When that came.
        stride: Steps from the first report to the second, None before that.
        last_step: The step of the newest report.
        last_at: When that came.
        recent: The newest intervals between reports, at most five.
    """

    started: float
    first_step: int | None = None
    first_at: float = 0.0
    stride: int | None = None
    last_step: int = -1
    last_at: float = 0.0
    recent: tuple[float, ...] = ()

    def reported(self, step: int, at: float) -> ReportPace:
        """The pace after a report; a known one changes nothing."""
        if self.first_step is None:
            return replace(self, first_step=step, first_at=at, last_step=step, last_at=at)
        if step <= self.last_step:
            return self
        stride = step - self.first_step if self.stride is None else self.stride
        recent = (*self.recent, max(0.0, at - self.last_at))[-_KEPT:]
        return replace(self, stride=stride, last_step=step, last_at=at, recent=recent)

    @property
    def first_seconds(self) -> float:
        """Seconds from the start to the first report, the start-up included."""
        return max(0.0, self.first_at - self.started)

    def next_report(self, others: Sequence[ReportPace] = ()) -> float:
        """Seconds from one report to the next, by our rule.

        The longest of the recent intervals, plus a tenth. A single report contains start-up and
        steps, so the start-up of other trials is subtracted; if none is known, half of the time
        counts as start-up.

        Args:
            others: Other trials of this process, in the order of their starts.
        """
        if self.recent:
            return _SAFETY * max(self.recent)
        startup = known_startup(others)
        if startup is None:
            return UNPROVEN * self.first_seconds
        interval = median([max(other.recent) for other in others if other.recent])
        return _SAFETY * max(self.first_seconds - startup, interval)

    @cached_property
    def steps(self) -> int:
        """Steps trained up to the first report."""
        if self.first_step is None:
            return 1
        return self.first_step - step_before(
            [self.first_step, self.first_step + (self.stride or 1)]
        )

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds per step, None before the first report."""
        if self.first_step is None:
            return None
        if self.last_step > self.first_step:
            return (self.last_at - self.first_at) / (self.last_step - self.first_step)
        return self.first_seconds / self.steps

    @cached_property
    def interval(self) -> float | None:
        """Seconds between two of the newest reports, on average; None before the second."""
        return fmean(self.recent) if self.recent else None

    @cached_property
    def startup(self) -> float:
        """Seconds before the first step, 0 until that is known."""
        per_step = self.seconds_per_step
        if per_step is None:
            return 0.0
        return max(0.0, self.first_seconds - per_step * self.steps)


def known_startup(paces: Sequence[ReportPace]) -> float | None:
    """Seconds that a trial of this process takes before its first step.

    The first trial is left out, because it does what is done once per process.

    Args:
        paces: Trials of this process, in the order of their starts.

    Returns:
        None if no trial but the first has reported twice.
    """
    known = [pace.startup for pace in paces[1:] if pace.recent]
    return median_low(known) if known else None


def trained_steps(step: int, first: int) -> int:
    """The steps that a trial has trained when it reports a step.

    Args:
        step: The report's step.
        first: The first step that any trial reports; if it is 0, a report of step 0 comes after
            one step.
    """
    return step + 1 - min(1, first)


def reported_step(trained: int, first: int) -> int:
    """The step that a trial reports after a number of trained steps: the inverse of the above."""
    return trained - trained_steps(0, first)


def step_before(steps: Iterable[int]) -> int:
    """The step before the first trained one, by the steps of a trial's reports.

    A trial whose steps start at 1,000 has trained one by then, and one that reports each tenth
    step has trained ten by its first report. If steps count from 0, this is -1.
    """
    first, *more = nsmallest(2, steps)
    stride = more[0] - first if more else 1
    return max(first - stride, min(first, 1) - 1)


def step_before_all(trials: Iterable[Collection[int]]) -> int:
    """The step before all of a study, by each trial's reports; 0 without any report."""
    return min((step_before(steps) for steps in trials if steps), default=0)


def seconds_of_new_trial(
    paces: Sequence[ReportPace], silent: Sequence[float], spare: float
) -> float:
    """Seconds that a new trial needs to its first report, or to its end without one.

    It may be any configuration, so in nine of ten cases it needs at most as long as the slowest of
    the trials so far, without a tenth of them. That is believed up to ``spare`` seconds, which
    may stay unused. Beyond, the median counts. What the first trials of a process do before their
    first step is done once: they count with the start-up of the others. While the first trial is
    the only one, half of the time before its steps counts.

    Args:
        paces: Trials of this process that have reported, in the order of their starts.
        silent: The seconds of those that have ended without a report.
        spare: The seconds that may stay unused.

    Returns:
        0 if no trial is known.
    """
    if len(paces) == 1 and not silent:
        return paces[0].first_seconds - UNPROVEN * paces[0].startup
    startup, others = known_startup(paces), paces[1:] or paces
    found = sorted([*(_usual_first_seconds(pace, startup) for pace in others), *silent])
    if not found:
        return 0.0
    most = found[math.ceil(_LIKELY * len(found)) - 1]
    return max(median(found), min(most, spare))


def _usual_first_seconds(pace: ReportPace, startup: float | None) -> float:
    once = 0.0 if startup is None else max(0.0, pace.startup - startup)
    return pace.first_seconds - once


def prospects(
    curves: Mapping[int, Curve],
    step_seconds: Mapping[int, float],
    *,
    left: float = math.inf,
    horizon: float | None = None,
) -> dict[int, float]:
    """The final score of a new trial like each of these.

    No trial passes one that was ahead of it at the same step: a curve that begins far behind rises
    steeply, and by its own rise it would pass all others.

    Args:
        curves: The known curves by trial.
        step_seconds: Seconds of a step on one slot by trial; others get the median.
        left: Seconds until the deadline.
        horizon: Steps of a full training; None for those of the longest known.

    Returns:
        By trial; minus infinity if it would not reach its first report.
    """
    model = learn_doublings(curves.values())
    typical = median(step_seconds.values()) if step_seconds else 0.0
    if horizon is None:
        horizon = max((curve.steps[-1] for curve in curves.values()), default=0.0)

    def until(curve: Curve, step: float) -> float:
        return curve.at(step) if step <= curve.steps[-1] else model.expect(curve, step)

    ends = {number: until(curve, horizon) for number, curve in curves.items()}
    most = _at_most(curves, ends)
    found = {}
    for number, curve in curves.items():
        seconds = step_seconds.get(number, typical)
        reach = min(horizon, left / seconds) if seconds > 0 else horizon
        if reach < curve.steps[0]:
            found[number] = -math.inf
            continue
        found[number], best, end = until(curve, reach), curve.best[-1], ends[number]
        if reach > curve.steps[-1] and most[number] < end:
            believed = (most[number] - best) / (end - best)
            found[number] = best + believed * (found[number] - best)
    return found


def _at_most(curves: Mapping[int, Curve], ends: Mapping[int, float]) -> dict[int, float]:
    """By trial, the lowest end of those that were at least as good at its last step."""
    found = {}
    by_step: dict[float, list[int]] = {}
    for number, curve in curves.items():
        by_step.setdefault(curve.steps[-1], []).append(number)
    for step, numbers in by_step.items():
        came = sorted(
            (-curve.at(step), ends[number])
            for number, curve in curves.items()
            if curve.steps[-1] >= step
        )
        lowest = list(accumulate((end for _, end in came), min))
        scores = [score for score, _ in came]
        for number in numbers:
            found[number] = lowest[bisect_right(scores, -curves[number].best[-1]) - 1]
    return found
