"""How a study with a budget sees its pool: only the slots that it pays for, and its purse."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Protocol

from optuna_deadline.allocation.records import Orders
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.planning.crossing import APART
from optuna_deadline.planning.reader import Reading
from optuna_deadline.policies.money import Money
from optuna_deadline.policies.plan import Plan

#: The end of the money is written again once it has moved so many seconds later.
_NEWS = 0.5


class Purse(Protocol):
    """What knows how much was spent."""

    def money(self, now: float, offered: int) -> Money:
        """The purse now, where live workers offer so many slots."""

    def lasts_until(self, now: float, slots: int, latest: float) -> float:
        """Until when the budget pays for so many slots, and for what is still held."""


class Funds:
    """Keeps a study's pool within its budget.

    Args:
        table: The allocation table.
        purse: Knows how much was spent.
        ceiling: Slots that could be had if they are paid for.
    """

    def __init__(self, table: AllocationStore, purse: Purse, ceiling: int = 0) -> None:
        self._ceiling = ceiling
        self._table = table
        self._purse = purse

    def see(self, reading: Reading, orders: Orders) -> Reading:
        """The reading with the purse, and with the slots alone that the study pays for."""
        snapshot = reading.snapshot
        money = self._purse.money(snapshot.now, max(self._ceiling, sum(reading.reach.values())))
        offers = within(reading, orders.pool_slots or 0)
        priced = snapshot.speedup
        snapshot = replace(
            snapshot,
            money=money,
            capacity=sum(offers.values()),
            largest_gang=max(reading.capacities.values(), default=money.node),
            speedup=priced if priced.pack is None else replace(priced, pack=None),
        )
        # What is paid for comes by whole hosts, and gangs stay within them.
        return replace(reading, snapshot=snapshot, capacities=offers, crossing=APART)

    def resize(self, me: str, term: int, reading: Reading, orders: Orders, plan: Plan) -> bool:
        """Write the size of the pool that a plan wants, and until when the money lasts then.

        Every worker ends its training by that instant on its own, so that the budget holds where
        no planner is left too. Returns whether the size has changed.
        """
        wanted, snapshot = plan.pool_slots, reading.snapshot
        if wanted is None:
            wanted = orders.pool_slots
        if wanted is None:
            assert snapshot.money is not None
            wanted = evenly(snapshot.money, snapshot.time_left)
        end = self._purse.lasts_until(snapshot.now, wanted, orders.deadline)
        resized = wanted != orders.pool_slots
        before = orders.funds_end
        if resized or before is None or end < before or end > before + _NEWS:
            self._table.resize_pool(me, term, wanted, end)
        return resized


def evenly(money: Money, seconds: float) -> int:
    """The most slots that the budget pays for until the deadline, at least a node.

    This is the best fixed cluster: what a policy gets that asks for nothing.
    """
    most = money.offer // money.node
    nodes = next((n for n in range(most, 1, -1) if n * money.charge(seconds) <= money.left), 1)
    return min(nodes, most) * money.node


def within(reading: Reading, slots: int) -> dict[str, int]:
    """The slots by worker that a study may use, where it pays for no more than ``slots``.

    Those workers come first on which most of it runs already.
    """
    wanted: Counter[str] = Counter()
    for line in reading.trials.values():
        if line.alive and line.mode == "run" and line.worker is not None:
            wanted[line.worker] += line.slots
    offers: dict[str, int] = {}
    left = slots
    order = sorted(reading.capacities.items(), key=lambda pair: (-wanted[pair[0]], pair[0]))
    for worker, size in order:
        share = min(size, left)
        if share > 0:
            offers[worker] = share
            left -= share
    return offers
