"""What a successive halving can be expected to find: the outer programme's yardstick.

Our reconstruction, a prior and no fit: final qualities are standard normal; a score after some of
the steps is the final one plus a random walk in the logarithm of the steps, so that early ranks
mislead more than late ones; who is trained less than whole falls short in proportion.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

#: Standard deviation of the walk from the first step to the last, in those of the final quality.
NOISE = 1.0

#: What a configuration gains from the first step to the last, likewise.
TRAINING = 2.0

_DRAWS = 384

#: The normal distribution's quantiles, and where they lie.
_NORMAL = np.linspace(-6.0, 6.0, 2401)
_PLACES = np.array([0.5 + 0.5 * math.erf(value / math.sqrt(2.0)) for value in _NORMAL])


@lru_cache(maxsize=4096)
def expected_best(survivors: tuple[int, ...], steps: tuple[int, ...], whole: int) -> float:
    """The expected final quality of the best, in standard deviations over the configurations.

    Scores are drawn from round to round, each given the one before, and for survivors only: who
    survives the first round are the highest of so many draws.

    Args:
        survivors: Trials in each round, falling.
        steps: The step to which each round trains.
        whole: The steps of a whole training.
    """
    rng = np.random.default_rng(0)
    levels = [_left(step, whole) for step in steps]
    variances = [1.0 + NOISE**2 * level for level in levels]
    kept = [*survivors[1:], 1]
    count, keep = survivors[0], min(survivors[0], kept[0])
    below = rng.beta(count - keep, keep + 1, (_DRAWS, 1)) if keep < count else 0.0
    places = below + (1.0 - below) * rng.random((_DRAWS, keep))
    scores = math.sqrt(variances[0]) * np.interp(places, _PLACES, _NORMAL)
    for before, now, keep in zip(variances[:-1], variances[1:], kept[1:], strict=True):
        spread = math.sqrt(max(0.0, now * (1.0 - now / before)))
        scores = now / before * scores + spread * rng.standard_normal(scores.shape)
        if keep < scores.shape[1]:
            scores = np.partition(scores, scores.shape[1] - keep, axis=1)[:, -keep:]
    return float(scores.max(axis=1).mean()) / variances[-1] - TRAINING * levels[-1]


def _left(step: int, whole: int) -> float:
    """The share of the way that is left after a step, in the logarithm of the steps."""
    return max(0.0, 1.0 - math.log1p(step) / math.log1p(max(whole, step)))
