"""How large a pool is, where its slots cost money.

A larger pool is sooner done, and its last trials pay for slots that make them little faster; a
smaller one pays for less than it could use. So the course is laid over some pools around the one
that is held, with small gangs and large ones, and the one with room for most trials is taken. Our
rule; RubberBand and SEER ask the same question round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from optuna_deadline.policies.api import Money, Order, Pause, Plan, Snapshot
from optuna_deadline.policies.freeze_thaw.schedule import (
    HalvingSchedule,
    PoolCosts,
    RemainingBudget,
)

#: Seconds before the deadline in which all is saved and nothing trained.
CLOSING = 4.0
#: The share of the money that stays in reserve for what was not foreseen.
RESERVE = 0.01
#: Pools that are looked at, in those that are held, and by how much one must be better.
_AROUND, _BETTER = (0.25, 0.5, 0.67, 1.0, 1.5, 2.0, 4.0), 1.1


def choose_pool(
    snapshot: Snapshot,
    pool: PoolCosts,
    newcomers: int | None,
    schedule_for: Callable[[PoolCosts, RemainingBudget], HalvingSchedule],
) -> tuple[PoolCosts, HalvingSchedule]:
    """The pool, and the course on it.

    Args:
        snapshot: The study.
        pool: What there is now.
        newcomers: Trials that may still be opened; None: any number.
        schedule_for: Lays a course.
    """
    money = snapshot.money
    if money is None:
        return pool, schedule_for(pool, RemainingBudget(snapshot.time_left, newcomers=newcomers))
    found = []
    for nodes in node_counts(money, snapshot.time_left):
        limits = limits_of(money, nodes, snapshot.time_left, newcomers)
        for gang in pool.speedup.useful(max(1, pool.largest_gang)):
            tried = replace(pool, capacity=nodes * money.node, largest_gang=gang, node=money.node)
            found.append((tried, schedule_for(tried, limits)))
    best = max(found, key=_merit)
    held = max([one for one in found if one[0].capacity == money.held], key=_merit, default=best)
    return held if best[1].trials <= _BETTER * held[1].trials else best


def with_settled_pool(plan: Callable[[Snapshot], Plan], snapshot: Snapshot) -> Plan:
    """A plan that stands once its pool is there.

    The pool's own size changes what a plan costs: one that changes it is made anew, as the next
    plan will see it. That may give nodes back once more, and asks for no others.
    """
    made, money = plan(snapshot), snapshot.money
    most: float = float("inf")
    while money is not None and made.pool_slots and made.pool_slots != money.held:
        most = min(most, made.pool_slots)
        money = replace(money, held=int(most))
        capacity = min(snapshot.capacity, money.held)
        made = plan(replace(snapshot, capacity=capacity, money=money))
        if made.pool_slots is not None and made.pool_slots > most:
            made = replace(made, pool_slots=int(most))
    return made


def stop_all(snapshot: Snapshot) -> Plan:
    """There is no time, or no money: everybody leaves, and every node is given back."""
    orders: dict[int, Order] = {
        trial.number: Pause("no time or no money is left")
        for trial in snapshot.trials
        if trial.alive
    }
    return Plan(orders, gate_open=False, pool_slots=None if snapshot.money is None else 0)


def _merit(found: tuple[PoolCosts, HalvingSchedule]) -> tuple[int, float]:
    _, course = found
    return course.trials, -course.slot_seconds


def node_counts(money: Money, seconds: float) -> Iterator[int]:
    """Numbers of nodes to compare: around those that are held, and what lasts to the deadline."""
    most = max(1, money.affordable // money.node)
    even = money.left / max(money.charge(seconds), 1e-12)
    held = money.nodes(money.held)
    yield from sorted({min(most, max(1, int(n))) for n in (even, *(held * a for a in _AROUND))})


def limits_of(money: Money, nodes: int, seconds: float, newcomers: int | None) -> RemainingBudget:
    """What is left of time and money if so many nodes are held from now on."""
    more = max(0, nodes - money.nodes(money.held))
    left = (money.left + money.ahead) * (1 - RESERVE) - more * money.entrance
    seconds -= CLOSING + (money.startup if more else 0.0)
    return RemainingBudget(max(0.0, seconds), max(0.0, left) / max(money.price, 1e-12), newcomers)
