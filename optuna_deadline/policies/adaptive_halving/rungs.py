"""Scores at rungs, and how well ranks at one rung predict ranks at the next.

Rungs are at the first reported step times 1, 2, 4, ... A trial's score at a rung is its best
report until then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import cast

from optuna_deadline.policies.rungs import Rung, RungTable, best_until

#: The reliability before anything is measured, and the number of pairs that it counts as: with
#: fewer, two pairs of the first trials on a small pool end the search.
_PRIOR, _WEIGHT = 0.95, 40.0
_LEAST, _MOST = 0.3, 0.995  # reliabilities that are believed
_FEWEST = 3  # pairs that are measured
_CERTAIN = 16  # pairs by which a first rung is found to say nothing
#: All trials go on where the reliability of a doubling is at most ``1 - 1 / _STEEPNESS``.
_STEEPNESS, _POWER = 3.0, 4 / 7
_LAST = 0.75  # of the last rung: rungs beyond that would be too close to it


def rungs_up_to(table: RungTable, last: int) -> list[Rung]:
    """The rungs of a course whose last rung is a given step."""
    rungs: list[Rung] = []
    while (step := table.milestone(len(rungs))) < _LAST * last:
        known = len(rungs) < len(table.rungs)
        rungs.append(table.rungs[len(rungs)] if known else Rung(step))
    end = Rung(last)
    for number in rungs[-1].recorded if rungs else table.reports:
        if (reports := table.reports[number]) and reports[-1].step >= last:
            end.record(number, best_until(reports, last))
    return [*rungs, end]


def telling(rungs: list[Rung]) -> list[Rung]:
    """The rungs without a first one that decides nothing, such as a report before any training.

    All trials go on from it anyway, and it says nothing about how well ranks hold later.
    """
    if len(rungs) > 2:
        pairs, r = _correlation(rungs[0], rungs[1])
        if pairs >= _CERTAIN and r < _LEAST:
            return rungs[1:]
    return rungs


def reliabilities(rungs: Sequence[Rung]) -> list[float]:
    """The persistence of ranks per doubling of the steps, from each rung to the next.

    A rank correlation of normal scores, corrected for the selection of the trials that went on
    (Thorndike's case 2), shrunk to the mean over the rungs, and that to 0.95. The shrinkage is our
    reconstruction.
    """
    found = [_correlation(here, there) for here, there in itertools.pairwise(rungs)]
    pairs = sum(count for count, _ in found)
    mean = (_WEIGHT * _PRIOR + sum(count * r for count, r in found)) / (_WEIGHT + pairs)
    shrunk = [(count * r + _WEIGHT * mean) / (count + _WEIGHT) for count, r in found]
    return [min(_MOST, max(_LEAST, r)) for r in shrunk]


def shares_kept(rungs: Sequence[Rung], reliable: Sequence[float]) -> list[float]:
    """The share of each rung that goes on to the next.

    Per doubling ``min(1, 3 (1 - rho)) ** (4 / 7)``: 0.25 at 0.97, 0.5 at 0.9, all at 0.67. The
    constants were chosen on synthetic curves.
    """
    steps = [rung.milestone for rung in rungs]
    return [
        min(1.0, _STEEPNESS * (1 - r)) ** (_POWER * math.log2(there / here))
        for r, (here, there) in zip(reliable, pairwise(steps), strict=True)
    ]


def _correlation(here: Rung, there: Rung) -> tuple[int, float]:
    """The pairs of two rungs and their correlation per doubling."""
    known = here.memo
    if known is None or known[0] is not there or known[1] != there.version:
        known = here.memo = there, there.version, _correlate(here, there)
    return cast("tuple[int, float]", known[2])


def _correlate(here: Rung, there: Rung) -> tuple[int, float]:
    scores = normal_scores(len(here.ranked))
    both = [
        (score, there.recorded[number], number)
        for score, (_, number) in zip(scores, here.ranked, strict=True)
        if number in there.recorded
    ]
    ranks = [score for score, _, _ in both]
    spread = _deviation(ranks) if len(both) >= _FEWEST else 0.0
    if spread < 1e-9:
        return 0, 0.0
    later = sorted(both, key=lambda pair: (-pair[1], pair[2]))
    place = dict(zip((number for _, _, number in later), normal_scores(len(both)), strict=True))
    mean, after = fmean(ranks), [place[number] for _, _, number in both]
    product = fmean([(a - mean) * b for a, b in zip(ranks, after, strict=True)])
    r = product / spread / _expected_deviation(len(both))
    ratio = max(1.0, _expected_deviation(len(scores)) / spread)
    r = max(0.0, r * ratio / math.sqrt(1 + r * r * (ratio * ratio - 1)))
    return len(both), r ** (1 / math.log2(there.milestone / here.milestone))


@lru_cache(maxsize=4096)
def normal_scores(count: int) -> Sequence[float]:
    """Normal quantiles of a number of ranks, the best first."""
    quantile = NormalDist().inv_cdf
    return [-quantile((rank + 0.5) / count) for rank in range(count)]


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation; ``statistics.pstdev`` computes with fractions, which is slow."""
    mean = fmean(values)
    return math.sqrt(fmean([(value - mean) ** 2 for value in values]))


@lru_cache(maxsize=4096)
def _expected_deviation(count: int) -> float:
    """The standard deviation of the normal scores of a number of ranks."""
    return _deviation(normal_scores(count))
