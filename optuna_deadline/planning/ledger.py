"""The money spent, derived from the audit alone: the same for every planner that reads it.

A study pays for the slots that its plan wants, from the event that says so on, and for those that
its trials still hold beyond that until they have left them; each at the price of the type of its
host, as its worker said it when it joined. What a dead worker held beyond that is nobody's bill:
its ranks were killed when their trust ran out, and only the lease was left. Without a live worker
a study pays for nothing, from the end of the last one's lease on.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import cast

from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.planning.bill import Bill
from optuna_deadline.planning.late import solid
from optuna_deadline.planning.rates import Tariff
from optuna_deadline.policies.money import Money

#: Whatever changes what is paid for, or what it costs.
KINDS = ("pool", "acquire", "release", "reap", "settle", "rest", "register", "price")
#: From these on a study pays for nothing, until a plan says otherwise.
_ENDS = ("settle", "rest")


class Ledger:
    """A study's bill, kept up from its events.

    Args:
        table: The allocation table.
        tariff: What may be spent, and the prices at first.
        before: Spent before the first of the table's events.
    """

    def __init__(self, table: AllocationStore, tariff: Tariff, before: float = 0.0) -> None:
        self._table = table
        self._before = before
        self._tariff = tariff
        self._events: dict[int, Event] = {}
        self._solid = 0
        self._bill = Bill(tariff, closed=before)
        self._types: dict[str, str] = {}
        self._wanted: Mapping[str, int] = {}
        self._until = math.inf

    def read(self, now: float) -> None:
        """Take in what has happened until now; what is asked then goes by it."""
        after, fresh, seen = self._solid, False, []
        while page := self._table.events(after, KINDS):
            after = page[-1].id
            for event in page:
                fresh = fresh or event.id not in self._events
                self._events[event.id] = event
                seen.append((event.id, event.at))
        self._solid = solid(seen, now, self._solid)
        if fresh or now > self._until:
            self._types = types_of(self._events.values())
            self._wanted, self._until = wanted_of(self._events.values(), self._tariff, now)
            self._bill = self._make(now)

    def _make(self, now: float) -> Bill:
        bill = bill_of(self._events.values(), self._tariff, now)
        bill.closed += self._before
        return bill

    # By what was read last.

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        """The purse now, where workers offer slots of these types and so many can be had."""
        return self._bill.money(now, offer, most)

    def spent(self, now: float) -> float:
        """What the bill says."""
        return self._bill.spent(now)

    def affordable(self, now: float, slots: Mapping[str, int]) -> dict[str, int]:
        """As many of these slots as the budget pays for taking now."""
        return self._bill.affordable(now, slots)

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        """Until when the budget pays for so many slots, and for what is still held."""
        return self._bill.lasts_until(now, slots, latest)

    @property
    def wanted(self) -> Mapping[str, int]:
        """By type, the slots that are paid for since the last plan."""
        return self._wanted

    def kind(self, worker: str | None = None) -> str:
        """The type under which a worker's slots are billed; without one, the dearest."""
        return self._bill.tariff.kind(self._types.get(worker or ""))

    def price(self, kind: str, now: float) -> float:
        """Of a slot for a second."""
        return self._bill.tariff.rates[kind].at(now)

    @property
    def tariff(self) -> Tariff:
        """The prices with all that was told."""
        return self._bill.tariff

    def told(self, now: float, kind: str, per_hour: float, slots: int = 1) -> Bill:
        """The bill as it is once a price was told now."""
        bill = self._make(now)
        bill.tariff = bill.tariff.told(kind, now, per_hour, slots)
        return bill


def types_of(events: Iterable[Event]) -> dict[str, str]:
    """By worker, the type of its host."""
    return {
        event.worker: str(event.detail["type"])
        for event in events
        if event.kind == "register" and event.worker is not None and "type" in event.detail
    }


def in_order(events: Iterable[Event]) -> list[Event]:
    """Events as they happened: by their ids, none before the one that precedes it.

    Ids rise as rows are locked, and their times do not: a clock may be set back, and on PostgreSQL
    a transaction has the time of its beginning, however long it waits for the one before it.
    """
    ordered, latest = sorted(events, key=lambda event: event.id), -math.inf
    for place, event in enumerate(ordered):
        if event.at < latest:
            ordered[place] = replace(event, at=latest)
        latest = ordered[place].at
    return ordered


def wanted_of(
    events: Iterable[Event], tariff: Tariff, now: float = -math.inf
) -> tuple[Mapping[str, int], float]:
    """By type, the slots that the last plan wants, and until when; none after that."""
    last = max(
        (event for event in events if event.kind in ("pool", *_ENDS)),
        key=lambda event: event.id, default=None,
    )  # fmt: skip
    if last is None or last.kind in _ENDS:
        return {}, math.inf
    until = float(str(last.detail["until"]))
    return (_wanted(last, tariff), until) if now <= until else ({}, math.inf)


def _wanted(event: Event, tariff: Tariff) -> Mapping[str, int]:
    types = cast("Mapping[str, int] | None", event.detail.get("types"))
    if types is None:
        return {tariff.kind(None): int(str(event.detail["slots"]))}
    found: Counter[str] = Counter()
    for kind, slots in types.items():
        found[tariff.kind(kind)] += int(slots)
    return found


def bill_of(events: Collection[Event], tariff: Tariff, now: float = -math.inf) -> Bill:
    """The bill that a study's events make; see :func:`bills`."""
    return deque(bills(events, tariff, now), maxlen=1)[0][1]


def bills(
    events: Collection[Event], tariff: Tariff, now: float = -math.inf
) -> Iterator[tuple[float, Bill]]:
    """The bill as it stands before each of its changes, with that instant, and at last for good.

    It is one object, which changes when the next one is asked for.

    Args:
        events: Those of :data:`KINDS`, in any order; others are passed over.
        tariff: The prices at first.
        now: Nothing has happened until then but these events.
    """
    ordered = in_order(event for event in events if event.kind in KINDS)
    reaped = {(event.slot, (event.fence or 0) - 1) for event in ordered if event.kind == "reap"}
    types = types_of(ordered)
    bill, until = Bill(tariff), math.inf
    wanted: Mapping[str, int] = {}
    held: dict[int | None, str] = {}  # the type of each slot
    for event in ordered:
        if event.kind == "register":
            continue
        at = float(str(event.detail["since"])) if event.kind == "rest" else event.at
        if at > until:  # nothing is paid for beyond the end of the money but what is held
            yield until, bill
            wanted = {}
            bill.resize(Counter(held.values()), until)
            until = math.inf
        yield at, bill
        if event.kind == "price":
            bill.tariff = _told(bill.tariff, event)
        elif event.kind == "pool":
            wanted, until = _wanted(event, bill.tariff), float(str(event.detail["until"]))
        elif event.kind in _ENDS:
            wanted, until = {}, math.inf
            held.clear()
        elif event.kind == "acquire" and (event.slot, event.fence) not in reaped:
            held[event.slot] = bill.tariff.kind(types.get(event.worker or ""))
        else:
            held.pop(event.slot, None)
        bill.resize(Counter(wanted) | Counter(held.values()), at)
    if now > until:
        yield until, bill
        bill.resize(Counter(held.values()), until)
    yield math.inf, bill


def _told(tariff: Tariff, event: Event) -> Tariff:
    detail = event.detail
    kind, per_hour = str(detail["type"]), float(str(detail["per_hour"]))
    return tariff.told(kind, event.at, per_hour, int(str(detail["slots"])))
