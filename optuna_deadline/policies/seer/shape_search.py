"""SEER's outer programme: the shape of the successive halving within the time and the money.

Its objective is the expected quality of the best model. Our reconstruction, a prior and not a fit:
final qualities are standard normal; a score after some of the steps is the final one plus a random
walk in the logarithm of the steps, so that early ranks mislead more than late ones; a trial
without a full training loses quality in proportion.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from optuna_deadline.policies.seer.round_schedule import (
    Option,
    Rates,
    Schedule,
    Work,
    cheapest,
    concurrent_gangs,
    fastest_on_pool,
    least_cost,
    options,
    schedule,
)

#: Standard deviation of the walk from the first step to the last, relative to final quality's.
NOISE = 1.0

#: The gain of a configuration from the first step to the last, likewise.
TRAINING = 2.0

_DRAWS = 384

#: The normal distribution's quantiles, and where they lie.
_NORMAL = np.linspace(-6.0, 6.0, 2401)
_PLACES = np.array([0.5 + 0.5 * math.erf(value / math.sqrt(2.0)) for value in _NORMAL])


@lru_cache(maxsize=4096)
def expected_best(survivors: tuple[int, ...], steps: tuple[int, ...], whole: int) -> float:
    """The expected final quality of the best, in standard deviations over the configurations.

    Scores are drawn round by round, each given the one before, and for survivors only: the
    survivors of the first round are the highest of that many draws.

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


#: Numbers of configurations to try, and of those that the last round trains.
_COUNTS = tuple(sorted({round(1.05**k) for k in range(171)}))
#: Expected qualities that count as equal, where the search prefers more finalists since that
#: depends less on early ranks; and so much worse that it ends. In standard deviations.
_LEVEL, _CLEARLY = 0.03, 0.1
_FINALISTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

#: A round's gangs and pool stay unless a change saves this share of the remaining cost.
_WORTH_A_CHANGE = 0.15

#: Shares of the remaining training to try if all of it does not fit.
_SHARES = (1.0, 0.85, 0.7, 0.5, 0.35, 0.2, 0.1)


@dataclass(frozen=True)
class Means:
    """What a study has left to plan with.

    Attributes:
        steps: The rungs, including the last step.
        pace: Seconds of a step on one slot.
        rates: Prices, S(k), overhead, nodes; the money's budget is what is left.
        time: Seconds left.
    """

    steps: tuple[int, ...]
    pace: float
    rates: Rates
    time: float

    def affords(self, plan: Schedule | None) -> bool:
        """Whether a schedule exists and can be paid for."""
        return plan is not None and plan.cost <= self.rates.money.budget


@dataclass(frozen=True)
class Shape:
    """The configurations that train in each round, and the rung at which the first round ends."""

    survivors: tuple[int, ...]
    first: int


def best_shape(means: Means, done: int) -> Shape:
    """The feasible shape with the highest expected quality.

    Args:
        means: What is left.
        done: Steps that were made in the first round already.
    """
    return _best_shape(means, _COUNTS[bisect_right(_COUNTS, done) - 1] if done else 0)


@lru_cache(maxsize=4096)
def _best_shape(means: Means, done: int) -> Shape:
    best, shape = -math.inf, Shape((1,) * len(means.steps), 0)
    for first in range(max(1, len(means.steps) - 1)):
        step = means.steps[first]

        def rounds(survivors: tuple[int, ...], first: int = first, step: int = step) -> list[Work]:
            missing = max(1, round(survivors[0] - done / step))
            return [Work(missing, step * means.pace, 1), *later_works(means, first, survivors[1:])]

        value, found = _best(means, first, rounds)
        if found and value > best:
            best, shape = value, Shape(found, first)
    return shape


def _best(
    means: Means, first: int, rounds: Callable[[tuple[int, ...]], list[Work]]
) -> tuple[float, tuple[int, ...]]:
    """The survivors with the highest expected quality, and that; none if nothing fits.

    For every number of finalists, as many configurations as possible are taken, so the search is
    over the number of configurations and the share of them that a round keeps.
    """
    number = len(means.steps) - first
    best, found, most = -math.inf, tuple[int, ...](), len(_COUNTS)
    for finalists in _FINALISTS:

        def fits(place: int, finalists: int = finalists) -> bool:
            return _can_be_had(means, rounds(halved(_COUNTS[place], finalists, number)))

        at = _last(fits, most)  # more finalists leave money for fewer at the start
        survivors = halved(_COUNTS[max(0, at)], finalists, number)
        if at < 0 or survivors[-1] < finalists:
            break
        most = at + 1
        value = expected_best(survivors, means.steps[first:], means.steps[-1])
        if value < best - _CLEARLY:
            break
        if value >= best - _LEVEL:
            found = survivors
        best = max(best, value)
    return best, found


@lru_cache(maxsize=4096)
def survivors_after(
    means: Means, contenders: int, rung: int, to_do: Work | None
) -> tuple[int, ...]:
    """The survivors of a rung and of each later one: as many as possible.

    Args:
        means: What is left.
        contenders: The trials of the round that ends at the rung.
        rung: Its index.
        to_do: The rest of that round; None if it is over.
    """
    first = [] if to_do is None else [to_do]
    rounds = len(means.steps) - rung

    def fits(place: int) -> bool:
        survivors = halved(contenders, place + 1, rounds)[1:]
        return _can_be_had(means, [*first, *later_works(means, rung, survivors)])

    finalists = 1 + max(0, _last(fits, contenders // 2))
    return halved(contenders, finalists, rounds)[1:]


def _can_be_had(means: Means, works: list[Work]) -> bool:
    """Whether there is a schedule that ends in time and can be paid for."""
    if least_cost(works, means.rates) > means.rates.money.budget:
        return False
    return means.affords(cheapest(works, means.rates, means.time, refine=False))


def _last(fits: Callable[[int], bool], count: int) -> int:
    """The last place at which something fits; -1 if it fits nowhere."""
    low, high, stride = count - 1, count, 1
    while low >= 0 and not fits(low):
        low, high, stride = max(-1, low - stride), low, 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def halved(count: int, finalists: int, rounds: int) -> tuple[int, ...]:
    """The survivors of each round: an equal share goes on from each, half of them at most."""
    found = [count]
    for left in range(rounds - 1, 0, -1):
        share = min(0.5, (finalists / found[-1]) ** (1 / left))
        found.append(max(1, math.floor(found[-1] * share + 1e-9)))
    return tuple(found)


def later_works(means: Means, rung: int, survivors: Sequence[int]) -> list[Work]:
    """The rounds after a rung."""
    steps = means.steps[rung:]
    return [
        Work(count, (step - since) * means.pace)
        for count, since, step in zip(survivors, steps, steps[1:], strict=False)
    ]


@dataclass(frozen=True)
class Stage:
    """The progress of the round in progress.

    Attributes:
        rung: Where it ends.
        later: The planned number of trials of each later round.
        behind: How many of its trials are not through.
        steps: The mean remaining steps of these.
        single: Whether new trials start, on one slot each.
        gang: The gangs of running trials, 0 if none runs.
    """

    rung: int
    later: tuple[int, ...]
    behind: int
    steps: float
    single: bool
    gang: int


@lru_cache(maxsize=8192)
def next_round(means: Means, stage: Stage) -> tuple[Option, int]:
    """The option for the round in progress, and the nodes of the round after it."""
    rates, rest = means.rates, later_works(means, stage.rung, stage.later)
    first = Work(stage.behind, stage.steps * means.pace, 1 if stage.single else None)
    for share in _SHARES:
        works = [first, *rest]
        works[-1] = replace(works[-1], seconds=share * works[-1].seconds)
        best = cheapest(works, rates, means.time)
        if best is None or not means.affords(best):
            continue
        if rates.held:
            best = _kept(means, works, stage.gang, best) or best
        return best.rounds[0], best.rounds[1].nodes if rest else 0
    return _fallback_round(means, first), 0


def _kept(means: Means, works: list[Work], gang: int, best: Schedule) -> Schedule | None:
    """The schedule without a change, unless a change is worth it."""
    rates = means.rates
    gang = works[0].largest or gang or best.rounds[0].gang
    speedup = dict(rates.speedups).get(gang)
    if speedup is None or not concurrent_gangs(gang, rates.held, rates.money.node):
        return None
    staying = replace(rates, speedups=((gang, speedup),), overhead=0.0)
    now = fastest_on_pool(works[0], staying, rates.held)
    plan = schedule([now, *best.rounds[1:]], rates)
    if plan.seconds > means.time or not means.affords(plan):
        return None
    return plan if plan.cost <= best.cost / (1 - _WORTH_A_CHANGE) else None


def _fallback_round(means: Means, work: Work) -> Option:
    """Nothing fits: the most training that time and money allow."""
    rates, money = means.rates, means.rates.money
    nodes = max(1, money.offer // money.node)
    if money.price > 0:
        paid = money.budget / max(money.charge(means.time), 1e-12)
        nodes = max(1, min(nodes, int(paid)))
    if means.time <= money.startup:  # nodes that are not there start too late
        nodes = max(1, min(nodes, rates.held))
    found = options(work, replace(rates, money=replace(money, offer=nodes * money.node)))
    return found[0]
