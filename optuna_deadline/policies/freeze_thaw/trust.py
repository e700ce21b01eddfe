"""How far ranks can be trusted, learned from the study: do those that lead at a rung lead later?

Where schedules drop late or warm up long, the order at a rung says little about the end, and
whoever stops by it stops the best. So the better half of each rung is looked at again at the next:
the correlation of their ranks is the trust in all rungs. Only the better half counts, since
telling the hopeless from the others is easy everywhere and helps nobody to choose among the good.
PASHA (Bohdal et al., ICLR 2023) learns from such agreement when to stop; that it says how many a
rung lets go on is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

#: What is taken for the agreement before anything is seen: that between the rungs 1, 3, 9, 30 of
#: the project's own recording. It weighs as much as so many trials.
PRIOR, _WEIGHT = 0.76, 20
#: So many are let go on that the best of twenty at the next rung is among them, nine times in ten.
_BEST = NormalDist().inv_cdf(1 - 0.5 / 20)
_SURE = NormalDist().inv_cdf(0.9)
_FEWEST = 3  # pairs without which a rung says nothing


def agreement(rungs: Sequence[Sequence[tuple[float, float | None]]]) -> float:
    """The rank correlation from a rung to the next among the better half, over all rungs.

    Args:
        rungs: For each rung but the last, by trial that came there: its score there and at the
            next rung, None where it has not come so far.

    Returns:
        From 0, where the order there says nothing, to 1.
    """
    weight, total = float(_WEIGHT), _WEIGHT * PRIOR
    for scores in rungs:
        ranked = sorted(scores, key=lambda pair: -pair[0])
        better = ranked[: max(_FEWEST, -(-len(ranked) // 2))]
        pairs = [(here, there) for here, there in better if there is not None]
        if len(pairs) >= _FEWEST:
            weight += len(pairs)
            total += len(pairs) * _correlation(pairs)
    return max(0.0, total / weight)


def share_kept(trust: float, reduction_factor: int) -> float:
    """The share of a rung that goes on: one in the reduction factor, or more where it must be.

    Ranks are taken for normal scores with the correlation ``trust``. The best of twenty later has
    the score ``z`` there, so it stands above ``trust * z - 1.28 * sqrt(1 - trust ** 2)`` now with
    a probability of .9; the share is what is above that.
    """
    stands = trust * _BEST - _SURE * math.sqrt(1 - trust**2)
    return max(1 / reduction_factor, 1 - NormalDist().cdf(stands))


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Of normal scores; 0 where all stand level."""
    here = _normal_scores([pair[0] for pair in pairs])
    there = _normal_scores([pair[1] for pair in pairs])
    spread = math.sqrt(sum(x * x for x in here) * sum(y * y for y in there))
    if spread < 1e-9:
        return 0.0
    return sum(x * y for x, y in zip(here, there, strict=True)) / spread


def _normal_scores(values: Sequence[float]) -> list[float]:
    """What a normal sample of that size would have at the same ranks; who is level shares one."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    score: Callable[[float], float] = NormalDist().inv_cdf
    scores = {
        value: score((sum(level) / len(level) + 0.5) / len(values))
        for value, level in places.items()
    }
    return [scores[value] for value in values]
