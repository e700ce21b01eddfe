"""SEER's outer programme: which shape of successive halving the time and the money allow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from optuna_deadline.policies.rounds import (
    Option,
    Rates,
    Schedule,
    Work,
    at_once,
    cheapest,
    on_pool,
    options,
    schedule,
)
from optuna_deadline.policies.shapes import expected_best

#: Numbers of configurations that are considered.
_COUNTS = tuple(sorted({round(1.15**k) for k in range(60)}))

#: A round's gangs and pool are kept unless a change saves this share of what is left to pay.
_WORTH_A_CHANGE = 0.15

#: Shares of the training still wanted that are tried where the whole of it cannot be had.
_SHARES = (1.0, 0.85, 0.7, 0.5, 0.35, 0.2, 0.1)


@dataclass(frozen=True)
class Means:
    """What a study has left to plan with.

    Attributes:
        steps: The rungs, the last step among them.
        reduction_factor: A round keeps one in this many at least.
        pace: Seconds of a step on one slot.
        rates: Prices, S(k), overhead, nodes; the money's budget is what is left.
        time: Seconds left.
    """

    steps: tuple[int, ...]
    reduction_factor: int
    pace: float
    rates: Rates
    time: float

    def affords(self, plan: Schedule | None) -> bool:
        """Whether a schedule is one, and is paid for."""
        return plan is not None and plan.cost <= self.rates.money.budget


@dataclass(frozen=True)
class Shape:
    """How many configurations there are, and the rung at which the first round ends."""

    trials: int
    first: int


def best_shape(means: Means, done: int) -> Shape:
    """The shape that is expected to find most, among those that can be had.

    Args:
        means: What there is.
        done: Steps that were made in the first round already.
    """
    return _best_shape(means, float(f"{done:.1e}"))


@lru_cache(maxsize=4096)
def _best_shape(means: Means, done: float) -> Shape:
    best, found = -1e9, Shape(1, 0)
    for first in range(max(1, len(means.steps) - 1)):
        count = _largest(means, first, done)
        if count is None:
            continue
        survivors = halved(count, means.reduction_factor, len(means.steps) - first)
        value = expected_best(survivors, means.steps[first:], means.steps[-1])
        if value > best + 1e-9:
            best, found = value, Shape(count, first)
    return found


def _largest(means: Means, first: int, done: float) -> int | None:
    """The most configurations that can be had with this first rung."""

    def feasible(count: int) -> bool:
        works = works_of(means, first, count)
        missing = max(0.0, count * means.steps[first] - done) / means.steps[first]
        works[0] = replace(works[0], trials=max(1, round(missing)), largest=1)
        return means.affords(cheapest(works, means.rates, means.time, refine=False))

    low, high = -1, len(_COUNTS)
    while high - low > 1:
        middle = (low + high) // 2
        if feasible(_COUNTS[middle]):
            low = middle
        else:
            high = middle
    return None if low < 0 else _COUNTS[low]


def halved(count: int, reduction_factor: int, rounds: int) -> tuple[int, ...]:
    """The survivors of each round."""
    return tuple(max(1, count // reduction_factor**index) for index in range(rounds))


def works_of(means: Means, rung: int, count: int) -> list[Work]:
    """The rounds from a rung on, with so many trials in the first of them."""
    steps = (0, *means.steps)
    survivors = halved(count, means.reduction_factor, len(means.steps) - rung)
    return [
        Work(
            survivors[i],
            (steps[rung + i + 1] - (steps[rung + i] if i or rung else 0)) * means.pace,
        )
        for i in range(len(survivors))
    ]


@lru_cache(maxsize=4096)
def keep_at(means: Means, contenders: int, rung: int) -> int:
    """How many go on from a rung: as many as can be afforded, at most half of them."""
    low, high = 0, max(1, contenders // 2) + 1
    while high - low > 1:
        middle = (low + high) // 2
        works = works_of(means, rung + 1, middle)
        if means.affords(cheapest(works, means.rates, means.time, refine=False)):
            low = middle
        else:
            high = middle
    return max(1, low)


@dataclass(frozen=True)
class Stage:
    """How far the round in progress has come.

    Attributes:
        rung: Where it ends.
        contenders: How many take part, new ones that are still to come among them.
        behind: How many of those are not through.
        steps: What each of these still has to do, in the mean.
        single: New trials come, which start on one slot each.
        gang: The gangs of those that train now, 0 where nobody does.
    """

    rung: int
    contenders: int
    behind: int
    steps: float
    single: bool
    gang: int


@lru_cache(maxsize=8192)
def next_round(means: Means, stage: Stage) -> tuple[Option, int]:
    """How to go through the round in progress, and the nodes of the round after it."""
    rates, rest = means.rates, list[Work]()
    if stage.rung + 1 < len(means.steps):
        survivors = max(1, stage.contenders // means.reduction_factor)
        rest = works_of(means, stage.rung + 1, survivors)
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
    return _all_there_is(means, first), 0


def _kept(means: Means, works: list[Work], gang: int, best: Schedule) -> Schedule | None:
    """The schedule that changes nothing now, unless a change is worth it."""
    rates = means.rates
    gang = works[0].largest or gang or best.rounds[0].gang
    speedup = dict(rates.speedups).get(gang)
    if speedup is None or not at_once(gang, rates.held, rates.money.node):
        return None
    staying = replace(rates, speedups=((gang, speedup),), overhead=0.0)
    now = on_pool(works[0], staying, rates.held)
    plan = schedule([now, *best.rounds[1:]], rates)
    if plan.seconds > means.time or not means.affords(plan):
        return None
    return plan if plan.cost <= best.cost / (1 - _WORTH_A_CHANGE) else None


def _all_there_is(means: Means, work: Work) -> Option:
    """Nothing fits: the most training that time and money give."""
    rates, money = means.rates, means.rates.money
    nodes = max(1, money.offer // money.node)
    if money.price > 0:
        paid = money.budget / max(money.charge(means.time), 1e-12)
        nodes = max(1, min(nodes, int(paid)))
    found = options(work, replace(rates, money=replace(money, offer=nodes * money.node)))
    return found[0]
