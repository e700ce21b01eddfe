"""The entrance rule: can a trial that starts now still become useful in the time left?

Our reconstruction of HyperSched's entrance rule, for processes that would idle if they refused.
HyperSched opens a trial while the time left covers the smaller of the furthest trial's time times
the reduction factor and the time of a whole trial. Here a newcomer must be able to come within one
reduction factor of the furthest trial, which is where the next rung would still compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from optuna_deadline.forecasting.reporting import UNPROVEN, Pace, known_startup

_SAFETY = 1.1


def steps_to_matter(
    furthest_step: int, *, min_resource: int, max_resource: int | None, reduction_factor: int
) -> float:
    """Steps that a newcomer must train before it can matter.

    Args:
        furthest_step: The furthest step that any trial has reached.
        min_resource: The first rung, in steps.
        max_resource: The steps of a whole trial, None where that is open.
        reduction_factor: The ratio of one rung to the one before.
    """
    furthest = furthest_step if max_resource is None else min(furthest_step, max_resource)
    return max(min_resource, furthest / reduction_factor)


def seconds_to_matter(
    steps: float, startups: Sequence[float], seconds_per_step: Sequence[float]
) -> float:
    """Seconds that a newcomer needs for ``steps``, a tenth for safety included.

    Args:
        steps: See :func:`steps_to_matter`.
        startups: Seconds that other trials took before their first step.
        seconds_per_step: Seconds that other trials took per step; at least one value.
    """
    startup = median(startups) if startups else 0.0
    return _SAFETY * (startup + steps * median(seconds_per_step))


def seconds_to_enter(steps: float, paces: Sequence[Pace]) -> float:
    """The same by the trials of the process that would train the newcomer.

    Where none has reported twice, only the newcomer's first report can be told: a single one
    says nothing of the steps after it. Of what a lone first trial took before its steps, and of a
    lone first report, half counts, since much of that is done once.

    Args:
        steps: See :func:`steps_to_matter`.
        paces: Trials of this process that have reported, in the order in which they began; at
            least one.
    """
    first, *others = paces
    per_step = [pace.seconds_per_step or 0.0 for pace in paces if pace.recent]
    if per_step:
        startup = known_startup(paces)
        if startup is None:
            startup = UNPROVEN * first.startup
        return seconds_to_matter(steps, [startup], per_step)
    if others:
        return seconds_to_matter(1, [], [pace.first_seconds for pace in others])
    return UNPROVEN * first.first_seconds


def may_enter(time_left: float, needed: float) -> bool:
    """Whether a newcomer that needs ``needed`` seconds may start with ``time_left`` to go."""
    return time_left > 0 and needed <= time_left
