"""What a trial that began now would come to by the deadline, were it like one that is known.

That is what a sampler should learn from: a configuration that wants two hours is worth nothing
with one hour left, and one that was stopped early is worth what it would have become. A curve is
read at the step that its own pace allows in the time left; where it does not reach so far, it is
continued by its doublings (:mod:`optuna_deadline.forecasting.doublings`). Our own rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from optuna_deadline.forecasting.doublings import learn_doublings
from optuna_deadline.forecasting.learning_curves import Curve


def prospects(
    curves: Mapping[int, Curve],
    step_seconds: Mapping[int, float],
    *,
    left: float = math.inf,
    horizon: float | None = None,
) -> dict[int, float]:
    """The score that a trial like each of these would end with.

    Args:
        curves: By trial, what is known of it.
        step_seconds: By trial, of a step on one slot; for a trial without, the median one.
        left: Seconds until the deadline.
        horizon: Steps of a whole training; None for those of the longest known.

    Returns:
        By trial; minus infinity where it would not come to its first report.
    """
    model = learn_doublings(curves.values())
    typical = median(step_seconds.values()) if step_seconds else 0.0
    if horizon is None:
        horizon = max((curve.steps[-1] for curve in curves.values()), default=0.0)
    found = {}
    for number, curve in curves.items():
        seconds = step_seconds.get(number, typical)
        reach = min(horizon, left / seconds) if seconds > 0 else horizon
        if reach < curve.steps[0]:
            found[number] = -math.inf
        elif reach <= curve.steps[-1]:
            found[number] = curve.at(reach)
        else:
            found[number] = model.expect(curve, reach)
    return found
