"""Rungs of successive halving: the scores at each, the cut, and the round in progress.

The round in progress is read from the trials alone: the last barrier passed is the highest rung
that a retired trial had reached, because trials retire at barriers only. So the round needs no
memory, and a planner that is elected in the middle of it continues where the one before stopped.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies.api import WORST, Report, TrialView

#: Assumed number of rungs until the length of a trial is known.
DEFAULT_RUNGS = 4


class Rung:
    """A milestone with the score that each trial recorded when it first reached it.

    A recorded score is the first report at or after the milestone and is never overwritten; the
    cut is the ``1 - 1 / reduction_factor`` quantile, linearly interpolated (as HyperSched's code
    has it).

    Attributes:
        milestone: In report steps.
        recorded: The scores by trial.
    """

    __slots__ = ("_best", "_cut", "_ranked", "_reduction_factor", "milestone", "recorded")

    def __init__(self, milestone: int, reduction_factor: int) -> None:
        self.milestone = milestone
        self.recorded: dict[int, float] = {}
        self._reduction_factor = reduction_factor
        self._ranked: list[tuple[float, int]] = []  # (-score, number), best first
        self._cut: tuple[float | None] | None = None  # None until it is computed
        self._best: frozenset[int] | None = None  # likewise

    def record(self, trial: TrialView) -> None:
        """Record the score of a trial that has reached the rung."""
        score = first_report(trial.reports, self.milestone).score
        self.recorded[trial.number] = score
        insort(self._ranked, (-score, trial.number))
        self._cut = self._best = None

    def forget(self, number: int) -> None:
        """Delete a trial's record."""
        del self._ranked[bisect_left(self._ranked, (-self.recorded.pop(number), number))]
        self._cut = self._best = None

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
        return [number for _, number in self._ranked[low:high]]

    def _passing(self, cut: float | None) -> int:
        """How many pass at a cut: they are the first of the ranking."""
        ranked = self._ranked
        return len(ranked) if cut is None else bisect_right(ranked, (-cut, math.inf))

    @property
    def best(self) -> frozenset[int]:
        """The best ``1 / reduction_factor``; a diverged trial is never among them."""
        if self._best is None:
            count = len(self._ranked) // self._reduction_factor
            best = [number for score, number in self._ranked[:count] if score < math.inf]
            self._best = frozenset(best)
        return self._best

    def _compute_cutoff(self) -> float | None:
        """The quantile as numpy interpolates it; numpy itself takes 100 times as long here."""
        ranked, last = self._ranked, len(self._ranked) - 1
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


def build_rungs(
    trials: Iterable[TrialView], min_resource: int, reduction_factor: int
) -> list[Rung]:
    """The rungs as they stand, lowest first; failed trials are left out."""
    judged = [trial for trial in trials if trial.state != "failed" and trial.reports]
    highest = max((trial.reports[-1].step for trial in judged), default=0)
    rungs = []
    for milestone in milestones(min_resource, reduction_factor, highest):
        rung = Rung(milestone, reduction_factor)
        for trial in judged:
            if trial.reports[-1].step >= milestone:
                rung.record(trial)
        rungs.append(rung)
    return rungs


def first_report(reports: Sequence[Report], milestone: int) -> Report:
    """The first report at or after a milestone that the trial has reached."""
    guess = milestone - reports[0].step  # right if every step is reported
    if 0 <= guess < len(reports) and reports[guess].step == milestone:
        return reports[guess]
    return reports[bisect_left(reports, milestone, key=lambda report: report.step)]


#: A round ends for trials that take this many times as long as the median one.
PATIENCE = 1.25


def ladder(min_resource: int, reduction_factor: int, last: int) -> tuple[int, ...]:
    """The rungs below the last step, and the last step itself."""
    steps = milestones(min_resource, reduction_factor, last)
    return (*(step for step in steps if step * 1.5 <= last), last)


def barrier(retired: Iterable[TrialView], steps: Sequence[int]) -> int:
    """The index of the last rung at which a trial was retired; -1 before the first.

    A trial that has diverged was retired by no rung.
    """
    furthest = max([t.step for t in retired if math.isfinite(t.last_score)], default=0)
    return min(bisect_right(steps, furthest) - 1, len(steps) - 2)


def ranked(contenders: Sequence[TrialView], step: int) -> list[TrialView]:
    """Sorted by the score at a rung, best first; trials that are not there yet by their last."""
    return sorted(contenders, key=lambda trial: (-_recorded(trial, step), trial.number))


def round_is_over(
    contenders: Sequence[TrialView],
    since: int,
    step: int,
    pace: float,
    speedup: Speedup,
    settled: float,
) -> bool:
    """Whether a round has ended: all are through, or the rest takes too long.

    More than half must be through, so that at least one of the losers has reached the rung.

    Args:
        contenders: The trials of the round.
        since: The rung at which the round started.
        step: The rung at which it ends.
        pace: Seconds of a step on one slot, the median of the trials.
        speedup: S(k).
        settled: Trials whose slots have changed after this instant are not judged by them yet.
    """
    behind = [trial for trial in contenders if trial.alive and trial.step < step]
    if not behind:
        return True
    if 2 * (len(contenders) - len(behind)) <= len(contenders):
        return False
    for trial in behind:
        usual = (step - since) * pace / max(speedup(trial.slots), 1e-9)
        if not trial.running or trial.changed > settled:
            return False
        if trial.trained - _trained_at(trial, since) < PATIENCE * usual:
            return False
    return True


def _recorded(trial: TrialView, step: int) -> float:
    if not trial.reports:
        return WORST
    if trial.step < step:
        return trial.last_score
    return first_report(trial.reports, step).score


def _trained_at(trial: TrialView, step: int) -> float:
    if step <= 0 or trial.step < step:
        return 0.0
    return first_report(trial.reports, step).trained
