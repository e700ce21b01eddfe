"""The pool of a study with a budget: the slots that it pays for, and the end of its money.

If the price or the budget changes, the new end of the money is written at once, because a planner
may die before its next tick and the budget holds all the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Protocol

from optuna_deadline.allocation.records import Orders
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.billing.invoice import RELEASE_SECONDS, Invoice
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.planning.cross_host import NO_GROUPS
from optuna_deadline.planning.reading import Reading
from optuna_deadline.policies.api import Money, Plan
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.prices import Price

#: The end of the money is written again once it has moved this many seconds later.
_MIN_CHANGE_SECONDS = 0.5
_NEVER = -1, 0.0, 0.0


class BudgetAccount(Protocol):
    """Tracks what was spent; slots are counted by the type of their host."""

    def read(self, now: float) -> None:
        """Read all events until now; the other methods use this state."""

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        """The money now, if live workers offer these slots and ``most`` can be bought."""

    def affordable(self, now: float, slots: Mapping[str, int]) -> dict[str, int]:
        """The number of these slots that the budget can buy now."""

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        """Until when the budget pays for some slots and for those that are still held."""

    @property
    def wanted(self) -> Mapping[str, int]:
        """The slots that are paid for since the last plan."""

    def host_type(self, worker: str | None = None) -> str:
        """The type of a worker's host; without one, the most expensive type."""

    def price(self, kind: str, now: float) -> float:
        """The price of a slot for one second."""


class PoolBudget:
    """Keeps a study's pool within its budget.

    Args:
        table: The allocation table.
        account: Tracks what was spent.
        max_pool_slots: The most slots that can be bought.
    """

    def __init__(
        self, table: AllocationTable, account: BudgetAccount, max_pool_slots: int = 0
    ) -> None:
        self._max_pool_slots = max_pool_slots
        self._table = table
        self._account = account
        self._lent: Mapping[str, int] = {}  # by worker, paid for or not
        self._sized_for: tuple[int, float, float] | None = None  # the offer, price and budget
        self._deadline = math.inf  # and until when

    def limit_to_paid_slots(self, reading: Reading, orders: Orders) -> Reading:
        """The reading with the money, and only with the slots that the study pays for."""
        snapshot, billed = reading.snapshot, self._account
        billed.read(snapshot.now)
        self._lent = reading.capacities
        offer = Counter[str]()
        for worker, slots in reading.reach.items():
            offer[billed.host_type(worker)] += slots
        money = billed.money(snapshot.now, offer, max(self._max_pool_slots, offer.total()))
        # After an extension, the pool keeps its size until it is sized again.
        known = billed.host_type() == "" and orders.pool_slots is not None
        offers = self._paid_slots_by_worker(
            reading, {"": orders.pool_slots or 0} if known else billed.wanted
        )
        priced = snapshot.speedup
        snapshot = replace(
            snapshot,
            money=money,
            capacity=sum(offers.values()),
            largest_gang=max(reading.capacities.values(), default=money.node),
            speedup=priced if priced.pack is None else replace(priced, pack=None),
        )
        # Slots are paid for by whole hosts, and gangs stay within them.
        return replace(reading, snapshot=snapshot, capacities=offers, worker_groups=NO_GROUPS)

    def wanted_slots(self, reading: Reading, orders: Orders, plan: Plan) -> int:
        """The number of slots that the plan wants.

        If the plan names none, as many as the budget pays for until the deadline. This is computed
        once, and again when other slots are offered, their price or the budget changes, or the
        deadline moves later.
        """
        money = reading.snapshot.money
        assert money is not None
        if plan.pool_slots is not None:
            return min(plan.pool_slots, money.offer)
        known, self._sized_for = self._sized_for, (money.offer, money.price, money.budget)
        before, self._deadline = self._deadline, orders.deadline
        # A study without slots gets some if it has money: it may have rested.
        if orders.pool_slots and known in (None, self._sized_for) and orders.deadline <= before:
            return orders.pool_slots
        return self._slots_until_deadline(reading, money, orders.deadline)

    @staticmethod
    def training_end(orders: Orders) -> float:
        """When all training ends, as far as it is computed: an extension does not add money.

        Workers use the stored end, since there may be no planner.
        """
        return orders.deadline if orders.pool_slots is None else orders.end

    def shrink_to_paid_slots(self, reading: Reading, plan: Plan, size: int) -> Reading | None:
        """The reading with only the slots that the plan still pays for.

        A granted segment is billed whatever the pool's size, and a node that is bought again is
        billed from its request.
        """
        if plan.slots <= size:
            return None
        less = self._paid_slots_by_worker(reading, self._slots_by_type(reading, size))
        offers = {w: min(slots, less.get(w, 0)) for w, slots in reading.capacities.items()}
        offers = {worker: slots for worker, slots in offers.items() if slots}
        snapshot = replace(reading.snapshot, capacity=sum(offers.values()))
        return replace(reading, snapshot=snapshot, capacities=offers)

    def write_pool_size(
        self, worker_id: str, term: int, reading: Reading, orders: Orders, wanted: int
    ) -> bool:
        """Write the wanted size of the pool and until when the money lasts at that size.

        Each worker ends its training by that instant on its own, so that the budget holds without
        a planner. The size is at most what the budget pays for. Returns whether it has changed.
        """
        now, billed = reading.snapshot.now, self._account
        types = billed.affordable(now, self._slots_by_type(reading, wanted))
        slots, end = sum(types.values()), orders.deadline
        if slots or not wanted:
            end = billed.lasts_until(now, types, orders.deadline)
        else:  # no money is left
            end = min(orders.end, billed.lasts_until(now, {}, now))
        before, resized = orders.funds_end, slots != orders.pool_slots
        typed = billed.host_type() != ""
        resized = resized or (typed and types != +Counter(billed.wanted))
        if resized or before is None or end < before or end > before + _MIN_CHANGE_SECONDS:
            written = self._table.resize_pool(
                worker_id, term, slots, end,
                types=types if typed else None, seen=(orders.pool_slots, orders.funds_end),
            )  # fmt: skip
            if not written:
                self._sized_for = _NEVER
        return resized

    def _slots_until_deadline(self, reading: Reading, money: Money, deadline: float) -> int:
        """The most slots that the budget pays for until the deadline, at least one node.

        This is the best fixed cluster, for policies that choose no size. If the budget is exactly
        that of these slots, training ends earlier than the deadline by the time to close.
        """
        enough = deadline - RELEASE_SECONDS - _MIN_CHANGE_SECONDS

        def lasts(nodes: int) -> bool:
            types = self._slots_by_type(reading, nodes * money.node)
            return self._account.lasts_until(reading.snapshot.now, types, deadline) >= enough

        most = money.offer // money.node
        return bisect_left(range(2, most + 1), True, key=lambda n: not lasts(n)) * money.node + (
            money.node if most else 0
        )

    def _slots_by_type(self, reading: Reading, wanted: int) -> dict[str, int]:
        """Slots by the type of their host, the cheapest first.

        Slots that are not offered count as before, and beyond that as the most expensive type.
        """
        billed, now = self._account, reading.snapshot.now
        there = Counter[str]()
        for worker, slots in self._lent.items():
            there[billed.host_type(worker)] += slots
        types, left = Counter[str](), wanted
        for of in (there, Counter(billed.wanted)):
            for kind in sorted(of, key=lambda kind: (billed.price(kind, now), kind)):
                more = min(left, max(0, of[kind] - types[kind]))
                types[kind] += more
                left -= more
        types[billed.host_type()] += left
        return {kind: slots for kind, slots in types.items() if slots}

    def _paid_slots_by_worker(self, reading: Reading, types: Mapping[str, int]) -> dict[str, int]:
        """The slots by worker that a study may use, if it pays for this number of each type.

        Workers that already train most of the study come first.
        """
        wanted: Counter[str] = Counter()
        for planned in reading.trials.values():
            if planned.alive and planned.mode == "run" and planned.worker is not None:
                wanted[planned.worker] += planned.slots
        offers: dict[str, int] = {}
        left = Counter(types)
        for worker, size in sorted(self._lent.items(), key=lambda o: (-wanted[o[0]], o[0])):
            kind = self._account.host_type(worker)
            share = min(size, left[kind])
            if share > 0:
                offers[worker] = share
                left[kind] -= share
        return offers


#: A planner may write between the read and the new price: then read again.
_MAX_TRIES = 100


def change_price(
    table: AllocationTable, budget: Budget, started: float, kind: str, price: Price
) -> float | None:
    """Store a new price of slots in a study.

    Args:
        table: The study's table.
        budget: The budget and the initial prices.
        started: When the study began.
        kind: The host type; "" if one price is for all.
        price: The new price; the rounding of the bill stays.

    Returns:
        When the money ends as things are; None if the deadline comes first, or if nothing is paid
        for yet.

    Raises:
        DeadlineError: The study has ended, or its prices go by host type and this one does not,
            or the other way round.
    """
    ledger = BillingLedger(table, tariff_of(budget, started))

    def bill(now: float) -> Invoice:
        _check_kind(ledger, kind, price)
        return ledger.with_price(now, kind, price.per_hour, price.node)

    def write(end: float, seen: _Seen, types: Mapping[str, int] | None) -> bool:
        return table.set_price(kind, price.per_hour, price.node, end, seen, types)

    return _change(table, ledger, bill, write)


def change_budget(
    table: AllocationTable, budget: Budget, started: float, amount: float
) -> float | None:
    """Store a new budget of a study.

    Args:
        table: The study's table.
        budget: The present budget and the initial prices.
        started: When the study began.
        amount: The new budget, of the whole study.

    Returns:
        As :func:`change_price`.

    Raises:
        DeadlineError: The study has ended, or it has spent more than this.
    """
    ledger, new = BillingLedger(table, tariff_of(budget, started)), replace(budget, amount=amount)

    def bill(now: float) -> Invoice:
        if (spent := ledger.spent(now)) > amount:
            raise DeadlineError(
                f"The study has spent {spent:.4g} {budget.currency} already: give a budget above "
                "it, or end the study with 'optuna-deadline stop'."
            )
        return ledger.with_budget(now, amount)

    def write(end: float, seen: _Seen, types: Mapping[str, int] | None) -> bool:
        return table.set_budget(asdict(new), end, seen, types)

    return _change(table, ledger, bill, write)


_Seen = tuple[int | None, float | None]


def _change(
    table: AllocationTable,
    ledger: BillingLedger,
    bill: Callable[[float], Invoice],
    write: Callable[[float, _Seen, Mapping[str, int] | None], bool],
) -> float | None:
    """Store what changes the bill; see :func:`change_price`."""
    for _ in range(_MAX_TRIES):
        orders = table.orders("")
        ledger.read(orders.now)
        if orders.settled or orders.now >= orders.end:
            raise DeadlineError("The study has ended, so neither price nor budget can change.")
        wanted = ledger.wanted
        end = bill(orders.now).lasts_until(orders.now, wanted, orders.deadline)
        types = None if "" in ledger.tariff.rates else wanted
        if write(end, (orders.pool_slots, orders.funds_end), types):
            return end if end < orders.deadline and any(wanted.values()) else None
    raise DeadlineError("The study's plan changes continually; set it again.")


def _check_kind(ledger: BillingLedger, kind: str, price: Price) -> None:
    rates = ledger.tariff.rates
    if (kind == "") != ("" in rates):
        known = ", ".join(sorted(rates)[:8])
        raise DeadlineError(
            f"The study's prices are by host type ({known}): write TYPE=PRICE."
            if kind == ""
            else "The study has one price for all hosts: write it alone, as in 1.2."
        )
    rate = rates.get(kind)
    if rate is not None and price.node not in (1, rate.node):
        raise DeadlineError(
            f"A host of {kind or 'this study'} has {rate.node} slots that are bought "
            "together, not "
            f"{price.node}."
        )
