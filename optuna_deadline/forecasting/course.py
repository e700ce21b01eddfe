"""How far the best score of a study will rise: trials, newcomers and policy in one.

The best of what is forecast of each trial is no forecast of the best: it picks the errors that
flatter. So three things are measured that say how far apart scores are where the study is now: how
far the best trial is ahead of the best tenth of all, what the last doubling of the time has
brought to the best score, and what the last doubling of its steps has brought to the best trial.
Of each it is known how many times as much was still to come in studies of the project's own curves
(:data:`~optuna_deadline.forecasting.prior.RISES`), and each has a third of the say. Our own rule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from optuna_deadline.forecasting.learning_curves import Curve, best_tenth
from optuna_deadline.forecasting.levels import LEVELS, drawn, told
from optuna_deadline.forecasting.prior import RISES

_FLOOR = 0.1  # of the lead, so that what stood still by chance may move again
_DRAWS = 40  # of each of the three; a twentieth of all is told
_DOUBLINGS = [math.log2(1 / part) for part in RISES]  # of the time, until the deadline


def measures(curves: Collection[Curve], course: Curve, now: float) -> tuple[float, float, float]:
    """How far apart scores are: the lead, what came lately, and what came to the best trial.

    Args:
        curves: Of all trials with a score; there must be some.
        course: When the best score rose, in seconds since the study began, and to what.
        now: Seconds since the study began.
    """
    leader = max(curves, key=lambda curve: curve.best[-1])
    lead = leader.best[-1] - best_tenth(curve.best[-1] for curve in curves)
    lately = course.best[-1] - course.at(now / 2)
    return lead, max(lately, _FLOOR * lead), max(leader.last_gain, _FLOOR * lead)


def best_by(
    best: float, measured: Sequence[float], now: float, instant: float
) -> tuple[float, ...]:
    """The best score at an instant, at each of the levels; nowhere below what is in hand.

    Args:
        best: In hand.
        measured: The three :func:`measures`.
        now: Seconds since the study began.
        instant: Likewise; before ``now`` nothing rises.
    """
    rises = [
        unit * drawn(times_ahead(one, now, instant), _DRAWS) for one, unit in enumerate(measured)
    ]
    return tuple([best + rise for rise in told(np.concatenate(rises))])


def times_ahead(measure: int, now: float, instant: float) -> list[float]:
    """How many times one of the three measures is still to come, at each of the levels.

    Linear in the doublings of the time, and beyond the last that was measured as before it.
    """
    ahead = max(0.0, math.log2(instant / now))
    known = [0.0, *_DOUBLINGS]
    rows = np.array([[0.0] * len(LEVELS), *(row[measure] for row in RISES.values())])
    above = min(max(1, int(np.searchsorted(known, ahead))), len(known) - 1)
    part = (ahead - known[above - 1]) / (known[above] - known[above - 1])
    times: list[float] = (rows[above - 1] + part * (rows[above] - rows[above - 1])).tolist()
    return times
