"""Which round of a successive halving is in progress, read from the trials alone.

Rungs are fixed steps. The last barrier passed is the highest rung that a retired trial had come
to: losers are retired at a barrier and nowhere else. So the round needs no memory, and a planner
that is elected in the middle of it goes on where the one before stopped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies.rungs import first_report, milestones
from optuna_deadline.policies.snapshot import WORST, TrialView

#: A round ends for those that take so many times as long as the middle one.
PATIENCE = 1.25


def ladder(min_resource: int, reduction_factor: int, last: int) -> tuple[int, ...]:
    """The rungs below the last step, and the last step itself."""
    steps = milestones(min_resource, reduction_factor, last)
    return (*(step for step in steps if step * 1.5 <= last), last)


def barrier(retired: Iterable[TrialView], steps: Sequence[int]) -> int:
    """The index of the last rung at which somebody was retired, -1 before the first."""
    furthest = max([trial.step for trial in retired], default=0)
    return min(bisect_right(steps, furthest) - 1, len(steps) - 2)


def ranked(contenders: Sequence[TrialView], step: int) -> list[TrialView]:
    """The best first, by what they recorded at a rung; who has not come there by the last."""
    return sorted(contenders, key=lambda trial: (-_recorded(trial, step), trial.number))


def over(
    contenders: Sequence[TrialView],
    since: int,
    step: int,
    pace: float,
    speedup: Speedup,
    settled: float,
) -> bool:
    """Whether a round has ended: all are through, or those that are not take too long.

    More than half must be through, so that somebody among the losers has come to the rung.

    Args:
        contenders: Who takes part.
        since: The rung at which the round began.
        step: The rung at which it ends.
        pace: Seconds of a step on one slot, for the one in the middle.
        speedup: S(k).
        settled: Whose slots have changed after this instant is not judged by them yet.
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
