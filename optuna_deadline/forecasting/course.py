"""How the best score of a study goes on, from how it went: trials, newcomers and policy in one.

The best of what is forecast of each trial is no forecast of the best: it picks the errors that
flatter. So the study's best score is read as one curve over the time since the study began, and
its next doublings are forecast as a trial's are (:mod:`optuna_deadline.forecasting.doublings`).

It moves in jumps, and may never move again. Improvements that come as often in each doubling of
the time are a Poisson process in its logarithm: after ``k`` of them in a window as long as the one
ahead, none comes with probability ``2 ** -(k + 1/2)``, by Jeffreys' prior. Our own rule.
"""

from __future__ import annotations

import numpy as np

from optuna_deadline.forecasting.doublings import LEVELS, Curve, learn_doublings


def best_by(improvements: Curve, now: float, instant: float) -> tuple[float, ...]:
    """The best score at an instant, at each of :data:`LEVELS`; nowhere below what is in hand.

    Args:
        improvements: When the best score rose, in seconds since the study began, and to what.
        now: Seconds since the study began.
        instant: Likewise, not before ``now``.
    """
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
