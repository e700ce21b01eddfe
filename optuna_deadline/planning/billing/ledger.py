"""The money spent, derived from the audit alone: the same for every planner that reads it.

A study pays for the slots that its plan wants, from the event that says so on, and for those that
its trials still hold beyond that until they have left them; each at the price of the type of its
host, as its worker registered it. What a dead worker held beyond that is not billed:
its ranks were killed when their trust ran out, and only the lease was left. Without a live worker
a study pays for nothing, from the end of the last one's lease on.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import cast

from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.allocation.tail import Tail
from optuna_deadline.planning.billing.invoice import Invoice
from optuna_deadline.planning.billing.price_schedule import Tariff
from optuna_deadline.policies.api import Money

#: Whatever changes what is paid for, or what it costs.
KINDS = ("pool", "acquire", "release", "reap", "settle", "rest", "register", "price")
#: Seconds by which events may be out of order: a transaction has the time of its beginning.
_DISORDER = 120.0
#: From these on a study pays for nothing, until a plan says otherwise.
_ENDS = ("settle", "rest")


class BillingLedger:
    """A study's bill, kept up from its events; those that nothing can precede are dropped.

    A reaped slot is not billed from its grant on. If that is in the bill already,
    which takes a worker that died, the bill is made anew from all events.

    Args:
        table: The allocation table.
        tariff: What may be spent, and the prices at first.
        before: Spent before the first of the table's events.
    """

    def __init__(self, table: AllocationStore, tariff: Tariff, before: float = 0.0) -> None:
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
        self._open_events: dict[int, Event] = {}  # those that others may yet precede, by their ids
        self._reaped: set[tuple[int | None, int]] = set()

    def read(self, now: float) -> None:
        """Take in what has happened until now; what is asked then goes by it."""
        self._is_complete = self._is_complete and self._read_new_events(now)
        while not self._is_complete:
            self._reset()
            reaps = Tail(lambda after: self._table.events(after, ("reap",)))
            self._reaped.update(reaped_by(reaps.read(now)))
            self._is_complete = self._read_new_events(now)

    def _read_new_events(self, now: float) -> bool:
        """False where an event changes what is final."""
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

    # By what was read last.

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        """The money now, where workers offer slots of these types and so many can be had."""
        return self._invoice.money(now, offer, most)

    def spent(self, now: float) -> float:
        """What the bill says."""
        return self._invoice.spent(now)

    def affordable(self, now: float, slots: Mapping[str, int]) -> dict[str, int]:
        """As many of these slots as the budget pays for taking now."""
        return self._invoice.affordable(now, slots)

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        """Until when the budget pays for so many slots, and for what is still held."""
        return self._invoice.lasts_until(now, slots, latest)

    @property
    def wanted(self) -> Mapping[str, int]:
        """By type, the slots that are paid for since the last plan."""
        return self._wanted

    def host_type(self, worker: str | None = None) -> str:
        """The type under which a worker's slots are billed; without one, the dearest."""
        return self._invoice.tariff.host_type(self._types.get(worker or ""))

    def price(self, kind: str, now: float) -> float:
        """Of a slot for a second."""
        return self._invoice.tariff.rates[kind].at(now)

    @property
    def tariff(self) -> Tariff:
        """The prices with all that was told."""
        return self._invoice.tariff

    def with_price(self, now: float, kind: str, per_hour: float, slots: int = 1) -> Invoice:
        """The bill as it is once a price was told now."""
        bill = self._provisional_account(now).invoice
        bill.tariff = bill.tariff.with_price(kind, now, per_hour, slots)
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
    ordered, latest = without_jumps(events), -math.inf
    for place, event in enumerate(ordered):
        if event.at < latest:
            ordered[place] = replace(event, at=latest)
        latest = ordered[place].at
    return ordered


def without_jumps(events: Iterable[Event], now: float = math.inf) -> list[Event]:
    """Events in the order of their ids, without the time by which a clock was ahead for a moment.

    An event is from such a moment if one with a larger id, or the present, is far before it, not
    before the events until then, and nearer to those. A clock that is set back is no such case.

    Args:
        events: All of them, or those after some that are known to be right.
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
    """The bill that a study's events make; see :func:`invoices`."""
    return deque(invoices(events, tariff, now), maxlen=1)[0][1]


def invoices(
    events: Collection[Event], tariff: Tariff, now: float = -math.inf
) -> Iterator[tuple[float, Invoice]]:
    """The bill as it stands before each of its changes, with that instant, and at last for good.

    It is one object, which changes when the next one is asked for.

    Args:
        events: Those of :data:`KINDS`, in any order; others are passed over.
        tariff: The prices at first.
        now: Nothing has happened until then but these events.
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
    """What was reaped: slots, with the fences under which they were taken."""
    return {(event.slot, (event.fence or 0) - 1) for event in events if event.kind == "reap"}


@dataclass
class BillingState:
    """Where a bill stands after some of a study's events, and what the next one needs.

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
    _taken: dict[int | None, int] = field(default_factory=dict)  # under which fence, if not left
    latest: float = -math.inf  #: the time of the last event

    def copy(self) -> BillingState:
        """Another one that stands there."""
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
        """Whether a slot that was taken under this fence is on the bill."""
        return self._taken.get(slot) == fence

    def take(self, event: Event, reaped: Set[tuple[int | None, int]]) -> None:
        """Take in an event of :data:`KINDS`, in the order of their ids."""
        deque(self.steps(event, reaped), maxlen=0)

    def close(self, now: float) -> None:
        """Nothing has happened until now but these events."""
        deque(self.last_steps(now), maxlen=0)

    def steps(self, event: Event, reaped: Set[tuple[int | None, int]]) -> Iterator[float]:
        """The instants of what an event changes, each told before the change is made."""
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
        """The same of the time alone: beyond the end of the money only what is held is paid."""
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
