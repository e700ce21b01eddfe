"""Rungs of successive halving: who stands where, and where the cut is."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optuna_deadline.policies.snapshot import Report, TrialView


@dataclass(frozen=True)
class Rung:
    """A milestone with the score that each trial recorded when it first reached it."""

    milestone: int
    recorded: dict[int, float]
    cutoff: float | None  #: None while fewer than two trials have been here

    def passed(self, number: int) -> bool:
        """Whether a trial's recorded score stands at or above today's cut."""
        return self.cutoff is None or self.recorded[number] >= self.cutoff


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
    """The rungs as they stand, lowest first.

    A recorded score is the first report at or after the milestone and is never overwritten; the
    cut is the ``1 - 1 / reduction_factor`` quantile, linearly interpolated (as HyperSched's code
    has it). Failed trials are left out.
    """
    judged = [trial for trial in trials if trial.state != "failed" and trial.reports]
    highest = max((trial.reports[-1].step for trial in judged), default=0)
    rungs = []
    for milestone in milestones(min_resource, reduction_factor, highest):
        judged = [trial for trial in judged if trial.reports[-1].step >= milestone]
        recorded = {trial.number: first_report(trial.reports, milestone).score for trial in judged}
        rungs.append(Rung(milestone, recorded, _cutoff(list(recorded.values()), reduction_factor)))
    return rungs


def first_report(reports: Sequence[Report], milestone: int) -> Report:
    """The first report at or after a milestone that the trial has reached."""
    guess = milestone - reports[0].step  # right wherever every step is reported
    if 0 <= guess < len(reports) and reports[guess].step == milestone:
        return reports[guess]
    return reports[bisect_left(reports, milestone, key=lambda report: report.step)]


def _cutoff(scores: list[float], reduction_factor: int) -> float | None:
    if len(scores) < 2:
        return None
    # Interpolating next to an infinite score would give NaN: diverged trials rank below all.
    ranked = sorted(scores)
    if not (math.isfinite(ranked[0]) and math.isfinite(ranked[-1])):
        finite = [score for score in ranked if math.isfinite(score)]
        if not finite:
            return None
        ranked = [min(max(score, finite[0] - 1.0), finite[-1] + 1.0) for score in ranked]
    return _quantile(ranked, 1 - 1 / reduction_factor)


def _quantile(ranked: Sequence[float], share: float) -> float:
    """Linearly interpolated, as numpy's default; numpy itself costs 100 times as much here."""
    place = share * (len(ranked) - 1)
    below = min(int(place), len(ranked) - 2)
    part = place - below
    low, high = ranked[below], ranked[below + 1]
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
