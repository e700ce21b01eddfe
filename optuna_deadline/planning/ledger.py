"""The money spent, derived from the audit alone: the same for every planner that reads it.

A study pays for the slots that its plan wants, from the event that says so on, and for those that
its trials still hold beyond that until they have left them. What a dead worker held beyond that is
nobody's bill: its ranks were killed when their trust ran out, and only the lease was left.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator

from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.budgets import Budget
from optuna_deadline.planning.bill import Bill
from optuna_deadline.policies.money import Money

#: Whatever changes what is paid for.
KINDS = ("pool", "acquire", "release", "reap", "settle")

#: PostgreSQL numbers rows before it commits them: a lower id may appear after a higher one.
_LATE_ROWS = 200


class Ledger:
    """A study's bill, kept up from its events.

    Args:
        table: The allocation table.
        budget: What may be spent, and the price.
        before: Spent before the first of the table's events.
    """

    def __init__(self, table: AllocationStore, budget: Budget, before: float = 0.0) -> None:
        self._table = table
        self._before = before
        self._terms = terms_of(budget)
        self._events: dict[int, Event] = {}
        self._last = 0
        self._bill = Bill(self._terms, closed=before)

    def money(self, now: float, offered: int) -> Money:
        """The purse now, where workers offer so many slots."""
        self._read()
        return self._bill.money(now, offered // self._terms.node * self._terms.node)

    def lasts_until(self, now: float, slots: int, latest: float) -> float:
        """Until when the budget pays for so many slots, by what :meth:`money` has read."""
        return self._bill.lasts_until(now, self._terms.nodes(slots), latest)

    def _read(self) -> None:
        after, fresh = max(0, self._last - _LATE_ROWS), False
        while page := self._table.events(after, KINDS):
            after = page[-1].id
            for event in page:
                fresh = fresh or event.id not in self._events
                self._events[event.id] = event
        self._last = max(self._last, after)
        if fresh:
            self._bill = bill_of(self._events.values(), self._terms)
            self._bill.closed += self._before


def terms_of(budget: Budget) -> Money:
    """A budget of which nothing has been spent, as a policy sees it."""
    price = budget.price
    return Money(
        budget=budget.amount,
        spent=0.0,
        price=price.per_second,
        granularity=price.granularity,
        startup=price.startup,
        minimum=price.minimum,
        node=price.node,
    )


def bill_of(events: Collection[Event], terms: Money) -> Bill:
    """The bill that a study's events make.

    Args:
        events: Those of :data:`KINDS`, in any order.
        terms: What a node costs.
    """
    return deque(bills(events, terms), maxlen=1)[0][1]


def bills(events: Collection[Event], terms: Money) -> Iterator[tuple[float, Bill]]:
    """The bill as it stands before each of its changes, with that instant, and at last for good.

    It is one object, which changes when the next one is asked for.

    Args:
        events: Those of :data:`KINDS`, in any order; others are passed over.
        terms: What a node costs.
    """
    ordered = sorted(
        (event for event in events if event.kind in KINDS), key=lambda event: (event.at, event.id)
    )
    reaped = {(event.slot, (event.fence or 0) - 1) for event in ordered if event.kind == "reap"}
    bill, wanted, until, held = Bill(terms), 0, math.inf, set[int | None]()
    for event in ordered:
        if event.at > until:  # nothing is paid for beyond the end of the money but what is held
            yield until, bill
            wanted = 0
            bill.resize(terms.nodes(len(held)), until)
            until = math.inf
        yield event.at, bill
        if event.kind == "pool":
            wanted, until = int(str(event.detail["slots"])), float(str(event.detail["until"]))
        elif event.kind == "settle":
            wanted, until = 0, math.inf
            held.clear()
        elif event.kind == "acquire" and (event.slot, event.fence) not in reaped:
            held.add(event.slot)
        else:
            held.discard(event.slot)
        bill.resize(terms.nodes(max(wanted, len(held))), event.at)
    yield math.inf, bill
