"""The money spent, computed from the events alone, so that every planner gets the same result.

A study pays for the slots that its plan wants, from that plan's event on. It also pays for slots
beyond the plan that its trials still hold, until they leave. Each slot costs the price of its
host's type, as its worker registered it. Slots beyond the plan that a dead worker held are not
billed: its ranks were killed when their lease ended. Without a live worker, a study pays for
nothing after the end of the last worker's lease.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import cast

from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.tail import Tail
from optuna_deadline.planning.billing.invoice import Invoice
from optuna_deadline.planning.billing.price_schedule import Tariff
from optuna_deadline.policies.api import Money

#: Events that change what is paid for, or its price.
KINDS = ("pool", "acquire", "release", "reap", "settle", "rest", "register", "price", "budget")
#: Seconds by which events may be out of order: their time is that of the transaction's start.
_DISORDER = 120.0
#: After these events a study pays for nothing until the next plan.
_ENDS = ("settle", "rest")


class BillingLedger:
    """A study's bill, kept up from its events; final events are dropped.

    A reaped slot is not billed from its grant on. If the bill already contains it, because a
    worker died, the bill is computed again from all events.

    Args:
        table: The allocation table.
        tariff: The budget and the initial prices.
        before: Spent before the first of the table's events.
    """

    def __init__(self, table: AllocationTable, tariff: Tariff, before: float = 0.0) -> None:
        self._table = table
        self._before = before
        self._tariff = tariff
        self._reset()
        self._invoice = Invoice(tariff, closed_cost=before)
        self._types: Mapping[str, str] = {}
        self._wanted: Mapping[str, int] = {}
        self._until = math.inf
        self._is_complete = False

    def _reset(self) -> None:
        table = self._table
        self._new = Tail(lambda after: table.events(after, KINDS))
        # of final events
        self._account = BillingState(Invoice(self._tariff, closed_cost=self._before))
        self._open_events: dict[int, Event] = {}  # events that others may still precede, by id
        self._reaped: set[tuple[int | None, int]] = set()

    def read(self, now: float) -> None:
        """Read all events until now; the other methods use this state."""
        self._is_complete = self._is_complete and self._read_new_events(now)
        while not self._is_complete:
            self._reset()
            reaps = Tail(lambda after: self._table.events(after, ("reap",)))
            self._reaped.update(reaped_by(reaps.read(now)))
            self._is_complete = self._read_new_events(now)

    def _read_new_events(self, now: float) -> bool:
        """Read new events; returns False if an event changes what is final."""
        new = [event for page in self._new.pages(now) for event in page]
        jumped = min([now, *(event.at for event in new)]) < self._account.latest - _DISORDER
        if self._is_complete and jumped:  # the clock was ahead, or is set back
            return False
        reaped = reaped_by(new) - self._reaped
        if any(self._account.is_billed(slot, fence) for slot, fence in reaped):
            return False
        self._reaped |= reaped
        self._open_events.update((event.id, event) for event in without_jumps(new, now))
        for row_id in sorted(row_id for row_id in self._open_events if row_id <= self._new.solid):
            self._account.take(self._open_events.pop(row_id), self._reaped)
        if new or not self._is_complete or now > self._until:
            account = self._provisional_account(now)
            self._invoice, self._types = account.invoice, account.types
            self._wanted, self._until = account.wanted, account.until
        return True

    def _provisional_account(self, now: float) -> BillingState:
        account = self._account.copy()
        for row_id in sorted(self._open_events):
            account.take(self._open_events[row_id], self._reaped)
        account.close(now)
        return account

    # Below: from the state at the last read.

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        """The money now, if workers offer these slots and ``most`` can be bought."""
        return self._invoice.money(now, offer, most)

    def spent(self, now: float) -> float:
        """The amount spent."""
        return self._invoice.spent(now)

    def affordable(self, now: float, slots: Mapping[str, int]) -> dict[str, int]:
        """The number of these slots that the budget can buy now."""
        return self._invoice.affordable(now, slots)

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        """Until when the budget pays for some slots and for those that are still held."""
        return self._invoice.lasts_until(now, slots, latest)

    @property
    def wanted(self) -> Mapping[str, int]:
        """By type, the slots that are paid for since the last plan."""
        return self._wanted

    def host_type(self, worker: str | None = None) -> str:
        """The type under which a worker's slots are billed; by default, the most expensive one."""
        return self._invoice.tariff.host_type(self._types.get(worker or ""))

    def price(self, kind: str, now: float) -> float:
        """The price of a slot for one second."""
        return self._invoice.tariff.rates[kind].at(now)

    @property
    def tariff(self) -> Tariff:
        """The budget and all prices so far."""
        return self._invoice.tariff

    def with_price(self, now: float, kind: str, per_hour: float, slots: int = 1) -> Invoice:
        """The bill if a new price holds from now on."""
        bill = self._provisional_account(now).invoice
        bill.tariff = bill.tariff.with_price(kind, now, per_hour, slots)
        return bill

    def with_budget(self, now: float, amount: float) -> Invoice:
        """The bill if a new budget holds from now on."""
        bill = self._provisional_account(now).invoice
        bill.tariff = replace(bill.tariff, budget=amount)
        return bill


def types_of(events: Iterable[Event]) -> dict[str, str]:
    """By worker, the type of its host."""
    return {
        event.worker: str(event.detail["type"])
        for event in events
        if event.kind == "register" and event.worker is not None and "type" in event.detail
    }


def in_order(events: Iterable[Event]) -> list[Event]:
    """Events in the order in which they happened: by id, none before the one that precedes it.

    Ids rise as rows are locked, but times may not: a clock may be set back, and on PostgreSQL an
    event has the time of its transaction's start, however long that waits for a lock.
    """
    ordered, latest = without_jumps(events), -math.inf
    for place, event in enumerate(ordered):
        if event.at < latest:
            ordered[place] = replace(event, at=latest)
        latest = ordered[place].at
    return ordered


def without_jumps(events: Iterable[Event], now: float = math.inf) -> list[Event]:
    """Events by id, without the time by which a clock was ahead for a moment.

    An event is from such a moment if an event with a larger id, or the present, is far before it
    and not before the earlier events. A clock that is set back is not such a case.

    Args:
        events: All events, or those after events that are known to be right.
        now: The present.
    """
    ordered = sorted(events, key=lambda event: event.id)
    earliest, later = now, []
    for event in reversed(ordered):
        later.append(earliest)
        earliest = min(earliest, event.at)
    latest = -math.inf
    for place, after in enumerate(reversed(later)):
        event = ordered[place]
        ahead = event.at - after
        if ahead > _DISORDER and 0 <= after - latest < ahead:
            ordered[place] = event = replace(event, at=after)
        latest = max(latest, event.at)
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
        return {tariff.host_type(None): int(str(event.detail["slots"]))}
    found: Counter[str] = Counter()
    for kind, slots in types.items():
        found[tariff.host_type(kind)] += int(slots)
    return found


def invoice_of(events: Collection[Event], tariff: Tariff, now: float = -math.inf) -> Invoice:
    """The bill of a study's events; see :func:`invoices`."""
    return deque(invoices(events, tariff, now), maxlen=1)[0][1]


def invoices(
    events: Collection[Event], tariff: Tariff, now: float = -math.inf
) -> Iterator[tuple[float, Invoice]]:
    """The bill before each of its changes with that instant, and at last the final bill.

    It is one object, which changes with the next iteration.

    Args:
        events: Events of :data:`KINDS` in any order; others are skipped.
        tariff: The initial prices.
        now: No other event has happened until then.
    """
    ordered = in_order(event for event in events if event.kind in KINDS)
    reaped, account = reaped_by(ordered), BillingState(Invoice(tariff))
    for event in ordered:
        for at in account.steps(event, reaped):
            yield at, account.invoice
    for at in account.last_steps(now):
        yield at, account.invoice
    yield math.inf, account.invoice


def reaped_by(events: Iterable[Event]) -> set[tuple[int | None, int]]:
    """Reaped slots, with the fences of their grants."""
    return {(event.slot, (event.fence or 0) - 1) for event in events if event.kind == "reap"}


@dataclass
class BillingState:
    """The state of a bill after some of a study's events.

    Attributes:
        invoice: The bill, which changes with each event.
        types: By worker, the type of its host.
        wanted: By type, the slots that the last plan wants.
        until: Until when they are paid for.
    """

    invoice: Invoice
    types: dict[str, str] = field(default_factory=dict)
    wanted: Mapping[str, int] = field(default_factory=dict)
    until: float = math.inf
    _held: dict[int | None, str] = field(default_factory=dict)  # the type of each slot
    _taken: dict[int | None, int] = field(default_factory=dict)  # fences of slots that are held
    latest: float = -math.inf  #: the time of the last event

    def copy(self) -> BillingState:
        """An independent copy."""
        bill = replace(
            self.invoice, since={kind: [*of] for kind, of in self.invoice.since.items()}
        )
        return replace(
            self,
            invoice=bill,
            types=dict(self.types),
            _held=dict(self._held),
            _taken=dict(self._taken),
        )

    def is_billed(self, slot: int | None, fence: int) -> bool:
        """Whether a slot that was granted under this fence is on the bill."""
        return self._taken.get(slot) == fence

    def take(self, event: Event, reaped: Set[tuple[int | None, int]]) -> None:
        """Apply an event of :data:`KINDS`; events come by id."""
        deque(self.steps(event, reaped), maxlen=0)

    def close(self, now: float) -> None:
        """Bill the time until now, without further events."""
        deque(self.last_steps(now), maxlen=0)

    def steps(self, event: Event, reaped: Set[tuple[int | None, int]]) -> Iterator[float]:
        """Yield the instants of the changes by an event, each before its change."""
        self.latest = max(self.latest, event.at)
        if event.at < self.latest:
            event = replace(event, at=self.latest)
        if event.kind == "register":
            self.types.update(types_of([event]))
            return
        at = float(str(event.detail["since"])) if event.kind == "rest" else event.at
        yield from self.last_steps(at)
        yield at
        bill = self.invoice
        if event.kind == "price":
            bill.tariff = _with_price_event(bill.tariff, event)
        elif event.kind == "budget":
            bill.tariff = replace(bill.tariff, budget=float(str(event.detail["amount"])))
        elif event.kind == "pool":
            self.wanted = _wanted(event, bill.tariff)
            self.until = float(str(event.detail["until"]))
        elif event.kind in _ENDS:
            self.wanted, self.until = {}, math.inf
            self._held.clear()
        elif event.kind == "acquire" and (event.slot, event.fence) not in reaped:
            self._held[event.slot] = bill.tariff.host_type(self.types.get(event.worker or ""))
            self._taken[event.slot] = event.fence or 0
        else:
            self._held.pop(event.slot, None)
            self._taken.pop(event.slot, None)
        bill.resize(Counter(self.wanted) | self._kinds(), at)

    def last_steps(self, now: float) -> Iterator[float]:
        """The end by the time alone: after the end of the money, only held slots are paid."""
        if now > self.until:
            until, self.wanted, self.until = self.until, {}, math.inf
            yield until
            self.invoice.resize(self._kinds(), until)

    def _kinds(self) -> Counter[str]:
        return Counter(self._held.values())


def _with_price_event(tariff: Tariff, event: Event) -> Tariff:
    detail = event.detail
    kind, per_hour = str(detail["type"]), float(str(detail["per_hour"]))
    return tariff.with_price(kind, event.at, per_hour, int(str(detail["slots"])))
