"""The inner programme: which gangs and which pool make a successive halving cheapest in time.

A round trains its survivors by some steps, each on a gang of ``g`` slots, on a pool of some nodes;
where the pool is too small for all at once they come in waves. Of every round the programme picks
one such option, so that all rounds together end by a deadline at the least cost (SEER's question,
and with the job given RubberBand's). Our reconstruction: the papers' own text was not at hand.

With a power law ``S(g) = g**a`` the optimum keeps the pool constant, with Amdahl's law it shrinks
with the root of the survivors; if S(g) is linear, all pools cost the same. Options are
enumerated, so S(g) may have any shape; if it falls, large gangs are never chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from optuna_deadline.policies.api import Money

#: Prices of time to try: from next to nothing to several times that of all nodes, and one that
#: outweighs everything.
_MANY = 33


@dataclass(frozen=True)
class Work:
    """The work of one round.

    Attributes:
        trials: The number of its trials.
        seconds: Seconds that each trains, on one slot.
        largest: The largest possible gang; None for any.
    """

    trials: int
    seconds: float
    largest: int | None = None


@dataclass(frozen=True)
class Option:
    """One way to schedule a round.

    Attributes:
        gang: Slots of each trial.
        nodes: Nodes of the pool.
        waves: How many times the pool is filled.
        seconds: The duration of the round.
        cost: The cost of the nodes in that time, by the second.
    """

    gang: int
    nodes: int
    waves: int
    seconds: float
    cost: float


@dataclass(frozen=True)
class Schedule:
    """An option for every round."""

    rounds: tuple[Option, ...]
    seconds: float  #: until all is done, waiting for nodes included
    cost: float  #: by the provider's own rounding


@dataclass(frozen=True)
class Rates:
    """What determines a round's time and cost beside its work.

    Attributes:
        money: The prices of nodes; a node's slots hold gangs.
        speedups: S(g) by the gang's size, the sizes to try.
        overhead: Seconds that every trial loses in a round by starting or resuming.
        held: Nodes that are already held.
    """

    money: Money
    speedups: tuple[tuple[int, float], ...]
    overhead: float
    held: int = 0


def concurrent_gangs(gang: int, nodes: int, node: int) -> int:
    """Gangs that fit on some nodes; one that is larger than a node fills whole ones."""
    return nodes * (node // gang) if gang <= node else nodes // -(-gang // node)


def fastest_on_pool(work: Work, rates: Rates, nodes: int) -> Option:
    """The fastest schedule of a round on a pool of a given size, with the smallest gangs."""
    found = [
        _option(work, rates, gang, speedup, nodes)
        for gang, speedup in rates.speedups
        if concurrent_gangs(gang, nodes, rates.money.node)
    ]
    return min(found, key=lambda option: (option.seconds, option.gang))


@lru_cache(maxsize=4096)
def options(work: Work, rates: Rates) -> tuple[Option, ...]:
    """All schedules of a round that none beats in time, cost and nodes, fastest first.

    Fewer nodes count as better, since nodes have to be started. Held nodes may be kept for a later
    round, though this one leaves some of them idle.
    """
    money = rates.money
    most = max(1, money.offer // money.node)
    found: list[Option] = []
    for gang, speedup in rates.speedups:
        if work.largest is not None and gang > work.largest:
            continue
        waves = work.trials + 1
        for nodes in range(1, most + 1):
            fit = concurrent_gangs(gang, nodes, money.node)
            fewer = fit and -(-work.trials // fit) < waves
            if fewer or (fit and nodes == rates.held):
                waves = -(-work.trials // fit)
                found.append(_option(work, rates, gang, speedup, nodes))
            if waves == 1 and nodes >= rates.held:
                break
    found.sort(key=lambda option: (option.seconds, option.cost, option.nodes))
    best: list[Option] = []
    for option in found:
        least = rates.held if option.nodes == rates.held else 0
        if not any(o.cost <= option.cost and least <= o.nodes <= option.nodes for o in best):
            best.append(option)
    return tuple(best)


def _option(work: Work, rates: Rates, gang: int, speedup: float, nodes: int) -> Option:
    money = rates.money
    waves = -(-work.trials // concurrent_gangs(gang, nodes, money.node))
    seconds = waves * (work.seconds / speedup + rates.overhead)
    return Option(gang, nodes, waves, seconds, money.price * money.node * nodes * seconds)


def cheapest(
    works: Sequence[Work],
    rates: Rates,
    time: float,
    starts: Sequence[Sequence[Option]] = (),
    refine: bool = True,
) -> Schedule | None:
    """The cheapest schedule that ends in time; None where there is none.

    By a price on time: the rounds take the options that are cheapest together at that price, which
    is raised until all fit. That is the lower convex hull of the exact programme. From there, and
    from every other start that is given, single rounds are changed as long as that saves money.

    Args:
        works: The rounds.
        rates: What time and cost depend on.
        time: Seconds there are.
        starts: Further schedules to begin from, such as static ones.
        refine: Whether to look beyond the convex hull.
    """
    choices = [options(work, rates) for work in works]
    begun = [_on_the_hull(choices, rates, time), *starts]
    fitting = [start for start in begun if schedule(start, rates).seconds <= time]
    if refine:
        fitting = [_descend(start, choices, rates, time) for start in fitting]
    found = [schedule(start, rates) for start in fitting]
    return min(found, key=lambda plan: (plan.cost, plan.seconds), default=None)


def least_cost(works: Sequence[Work], rates: Rates) -> float:
    """A lower bound of the cost, by the second: no slot idles and all nodes are there."""
    return rates.money.price * sum(
        work.trials
        * min(
            gang * (work.seconds / speedup + rates.overhead)
            for gang, speedup in rates.speedups
            if work.largest is None or gang <= work.largest
        )
        for work in works
    )


def schedule(picked: Sequence[Option], rates: Rates) -> Schedule:
    """The schedule of some options: additional nodes are waited for and paid for.

    Held nodes continue by the second: their start was rounded up already.
    """
    money = rates.money
    now, cost, held = 0.0, 0.0, rates.held
    since: list[float] = []
    for option in picked:
        while since and held + len(since) > option.nodes:
            cost += money.charge(now - since.pop())
        held = min(held, option.nodes)
        if held + len(since) < option.nodes:
            since += [now] * (option.nodes - held - len(since))
            now += money.startup
            cost += money.price * money.node * held * money.startup
        now += option.seconds
        cost += money.price * money.node * held * option.seconds
    cost += sum(money.charge(now - start) for start in since)
    return Schedule(tuple(picked), now, cost)


def _on_the_hull(
    choices: Sequence[Sequence[Option]], rates: Rates, time: float
) -> Sequence[Option]:
    """The cheapest of the paths that are best at some price of time; the fastest if none fits.

    A path is found by dynamic programming over the rounds, for all prices at once. What a round's
    option costs depends on the nodes of the one before: those that are added have to start.
    """
    money = rates.money
    second = money.price * money.node
    most = max(1, money.offer // money.node)
    prices = np.append(np.geomspace(0.02, 4.0 * most, _MANY - 1), 1e9) * (second or 1.0)
    held, costs, times = np.array([rates.held]), np.zeros((_MANY, 1)), np.zeros((_MANY, 1))
    came: list[NDArray[np.intp]] = []
    for found in choices:
        nodes = np.array([option.nodes for option in found])
        wait = np.where(nodes > held[:, None], money.startup, 0.0)
        cost = costs[:, :, None] + wait * second * nodes + [option.cost for option in found]
        secs = times[:, :, None] + wait + [option.seconds for option in found]
        best = np.argmin(cost + prices[:, None, None] * secs, axis=1, keepdims=True)
        costs = np.take_along_axis(cost, best, axis=1)[:, 0]
        times = np.take_along_axis(secs, best, axis=1)[:, 0]
        held = nodes
        came.append(best[:, 0])
    last = np.argmin(costs + prices[:, None] * times, axis=1)
    cost, secs = costs[np.arange(_MANY), last], times[np.arange(_MANY), last]
    fits = secs <= time
    at = int(np.argmin(np.where(fits, cost, np.inf)) if fits.any() else np.argmin(secs))
    path, place = list[Option](), int(last[at])
    for found, best in zip(reversed(choices), reversed(came), strict=True):
        path.append(found[place])
        place = int(best[at, place])
    return path[::-1]


def _descend(
    picked: Sequence[Option], choices: Sequence[Sequence[Option]], rates: Rates, time: float
) -> Sequence[Option]:
    """Change one round at a time, by the largest saving, while there is one."""
    now = schedule(picked, rates)
    while True:
        best = now
        for index, found in enumerate(choices):
            for option in found:
                if option is not picked[index]:
                    tried = [*picked[:index], option, *picked[index + 1 :]]
                    then = schedule(tried, rates)
                    if then.seconds <= time and then.cost < best.cost - 1e-9:
                        best = then
        if best is now:
            return picked
        picked, now = best.rounds, best
