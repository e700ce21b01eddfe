"""Rounds of synchronous halving, whose trials all train to the same rung.

The round in progress is read from the trials alone: the last barrier passed is the highest rung
that a retired trial had reached, because trials retire at barriers only. So the round needs no
memory, and a planner that is elected in the middle of it continues where the one before stopped.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies.api import WORST, TrialView
from optuna_deadline.policies.rungs import first_report, milestones

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
