"""The size of a bought pool: sizes to compare, what each leaves of time and money, and its end.

RubberBand and SEER choose the size round by round; the sizes compared here are our rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from optuna_deadline.policies.api import Money, Order, Pause, Plan, Snapshot

#: Seconds before the deadline in which trials save and none trains.
CLOSING = 4.0
#: The share of the money that stays in reserve.
RESERVE = 0.01
#: Sizes to compare, relative to the pool that is held.
_AROUND = (0.25, 0.5, 0.67, 1.0, 1.5, 2.0, 4.0)


def node_counts(money: Money, seconds: float) -> Iterator[int]:
    """Numbers of nodes to compare: around those that are held, and what lasts to the deadline."""
    most = max(1, money.affordable // money.node)
    even = money.left / max(money.charge(seconds), 1e-12)
    held = money.nodes(money.held)
    yield from sorted({min(most, max(1, int(n))) for n in (even, *(held * a for a in _AROUND))})


def left_with(money: Money, nodes: int, seconds: float) -> tuple[float, float]:
    """Seconds and slot-seconds for training if this number of nodes is held from now on."""
    more = max(0, nodes - money.nodes(money.held))
    left = (money.left + money.ahead) * (1 - RESERVE) - more * money.entrance
    seconds -= CLOSING + (money.startup if more else 0.0)
    return max(0.0, seconds), max(0.0, left) / max(money.price, 1e-12)


def with_settled_pool(plan: Callable[[Snapshot], Plan], snapshot: Snapshot) -> Plan:
    """Plan again until the plan wants the pool that it assumes.

    The size of the pool changes what a plan costs, so a plan that changes the size is made again,
    as the next one would be. A repeated plan may return further nodes and requests no others.
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
    """The plan without time or money: all trials pause, and all nodes are returned."""
    orders: dict[int, Order] = {
        trial.number: Pause("no time or no money is left") for trial in snapshot.alive
    }
    return Plan(orders, gate_open=False, pool_slots=None if snapshot.money is None else 0)
