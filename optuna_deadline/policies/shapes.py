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

_DRAWS = 128
_MOST = 4096


@lru_cache(maxsize=4096)
def expected_best(survivors: tuple[int, ...], steps: tuple[int, ...], whole: int) -> float:
    """The expected final quality of the best, in standard deviations over the configurations.

    Args:
        survivors: Trials in each round, falling.
        steps: The step to which each round trains.
        whole: The steps of a whole training.
    """
    rng = np.random.default_rng(0)
    count = min(survivors[0], _MOST)
    draws = max(8, min(_DRAWS, 16384 // count))
    quality = rng.standard_normal((draws, count))
    walk = np.zeros_like(quality)
    levels = [_left(step, whole) for step in steps]
    seen = []
    for level, later in zip(reversed(levels), [0.0, *reversed(levels[1:])], strict=True):
        spread = NOISE * math.sqrt(max(0.0, level - later))
        walk = walk + spread * rng.standard_normal(quality.shape)
        seen.append(quality + walk)
    seen.reverse()
    alive = np.ones(quality.shape, bool)
    for scores, keep in zip(seen, [*survivors[1:], 1], strict=True):
        scores = np.where(alive, scores, -np.inf)
        cut = np.partition(scores, count - min(keep, count), axis=1)[:, count - min(keep, count)]
        alive = scores >= cut[:, None]
    best = np.where(alive, quality, -np.inf).max(axis=1)
    return float(best.mean()) - TRAINING * levels[-1]


def _left(step: int, whole: int) -> float:
    """The share of the way that is left after a step, in the logarithm of the steps."""
    return max(0.0, 1.0 - math.log1p(step) / math.log1p(max(whole, step)))
