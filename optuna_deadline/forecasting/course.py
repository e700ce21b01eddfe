"""How the best score of a study goes on: trials, newcomers and policy in one.

The best of what is forecast of each trial is no forecast of the best: it picks the errors that
flatter. Two others are, and each has half of the say; our own rule.

The study's best score is one curve over the time since the study began, and its next doublings
are forecast as a trial's are (:mod:`optuna_deadline.forecasting.doublings`). It moves in jumps,
and may never move again. Improvements that come as often in each doubling of the time are a
Poisson process in its logarithm: after ``k`` of them in a window as long as the one ahead, none
comes with probability ``2 ** -(k + 1/2)``, by Jeffreys' prior.

And how far the best is ahead of the best tenth of the trials says how far apart good ones are, and
so by how much a better one will be better: by as many of these leads as it was in studies of the
project's own curves, so long before their deadlines.
"""

from __future__ import annotations

import math

import numpy as np

from optuna_deadline.forecasting.curves import Curve
from optuna_deadline.forecasting.doublings import learn_doublings
from optuna_deadline.forecasting.levels import LEVELS, drawn, told
from optuna_deadline.forecasting.prior import LEADS

_DRAWS = 40  # of each forecast; a twentieth of both is told


def best_by(
    improvements: Curve, now: float, instant: float, lead: float = 0.0
) -> tuple[float, ...]:
    """The best score at an instant, at each of the levels; nowhere below what is in hand.

    Args:
        improvements: When the best score rose, in seconds since the study began, and to what.
        now: Seconds since the study began.
        instant: Likewise, not before ``now``.
        lead: Of the best trial over the best tenth of all; 0 where nothing is known of it, and
            the course is all there is to go by.
    """
    course = _by_course(improvements, now, instant)
    if lead <= 0:
        return course
    leads = [
        improvements.best[-1] + lead * gain
        for gain in leads_ahead(max(now, improvements.steps[-1]), instant)
    ]
    return told(np.concatenate([drawn(course, _DRAWS), drawn(leads, _DRAWS)]))


def leads_ahead(now: float, instant: float) -> list[float]:
    """By how many leads the best score rises in a time, at each of the levels.

    Linear in the doublings of the time, and beyond the last that was measured as before it.
    """
    ahead = math.log2(instant / now)
    rows = np.vstack([np.zeros(len(LEVELS)), LEADS])
    below = min(int(ahead), len(LEADS) - 1)
    gains: list[float] = (rows[below] + (ahead - below) * (rows[below + 1] - rows[below])).tolist()
    return gains


def _by_course(improvements: Curve, now: float, instant: float) -> tuple[float, ...]:
    seconds, best = improvements.steps, improvements.best
    course = Curve((*seconds, now), (*best, best[-1])) if now > seconds[-1] else improvements
    still = 0.5 ** (0.5 + sum(one > now * now / instant for one in seconds))
    moved = learn_doublings([course]).quantiles(course, instant)
    shares = [(level - still) / (1 - still) for level in LEVELS]
    scores = np.interp(shares, LEVELS, moved).tolist()
    return tuple(
        [
            float(score) if share > 0 else best[-1]
            for share, score in zip(shares, scores, strict=True)
        ]
    )
