"""What nodes cost, by their type and at prices that change: pure, against a count unit by unit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from growth import instructions
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.allocation import tail
from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.planning.billing.invoice import RELEASE_SECONDS, Invoice
from optuna_deadline.planning.billing.ledger import BillingLedger, invoice_of, invoices, wanted_of
from optuna_deadline.planning.billing.price_schedule import Rate, Tariff, tariff_of
from optuna_deadline.policies.api import Money
from optuna_deadline.values.budgets import Budget, make_budget
from optuna_deadline.values.prices import Price

_prices = st.floats(0.1, 10.0)
_times = st.floats(0.0, 500.0)
rates = st.builds(
    Rate,
    prices=st.lists(st.tuples(_times, _prices), min_size=1, max_size=4, unique_by=lambda p: p[0])
    .map(sorted)
    .map(tuple),
    granularity=st.sampled_from([1.0, 7.0, 60.0]),
    startup=st.sampled_from([0.0, 20.0]),
    minimum=st.sampled_from([0.0, 30.0, 60.0]),
    node=st.integers(1, 4),
)


def by_hand(rate: Rate, since: float, until: float) -> float:
    """Unit by unit."""
    units = max(1, math.ceil(max(until - since, rate.minimum) / rate.granularity - 1e-9))
    least = math.ceil(rate.minimum / rate.granularity - 1e-9)
    begins = [since if i < least else since + i * rate.granularity for i in range(units)]
    return sum(rate.at(at) for at in begins) * rate.granularity * rate.node


@given(rates, _times, _times)
def test_each_unit_costs_what_it_did_when_it_began(rate: Rate, since: float, held: float) -> None:
    cost = rate.cost(since, since + held)
    assert cost == pytest.approx(by_hand(rate, since, since + held))
    assert cost >= rate.used(since, since + held) * (1 - 1e-9) or len(rate.prices) > 1


@given(rates, _times, _times, _prices)
def test_a_price_that_is_told_changes_nothing_that_was_billed(
    rate: Rate, since: float, held: float, price: float
) -> None:
    now = since + held + 1e-3
    assert rate.with_price(now, price).cost(since, now) == pytest.approx(rate.cost(since, now))


@given(st.floats(0.0, 5e3), st.sampled_from([0.0, 1.0, 60.0]), st.sampled_from([0.0, 45.0]))
def test_one_price_is_billed_as_policies_reckon(
    held: float, granularity: float, minimum: float
) -> None:
    rate = Rate(((0.0, 2.0),), granularity, 0.0, minimum, 4)
    money = Money(1e9, 0.0, 2.0, granularity, 0.0, minimum, 4)
    assert rate.cost(100.0, 100.0 + held) == pytest.approx(money.charge(held))


@given(
    st.dictionaries(st.sampled_from("abc"), rates, min_size=1),
    st.lists(st.tuples(st.floats(0, 60), st.integers(0, 9), st.integers(0, 9)), max_size=12),
    st.floats(1.0, 1e5),
)
def test_what_is_taken_and_kept_as_the_bill_allows_is_within_the_budget(
    kinds: dict[str, Rate], asked: list[tuple[float, int, int]], budget: float
) -> None:
    """Whoever asks for whatever: as much as is affordable, until the money lasts no longer."""
    bill, now, end = Invoice(Tariff(budget, kinds)), 0.0, math.inf
    names = sorted(kinds)
    for seconds, first, second in asked:
        if now + seconds >= end:
            break
        now += seconds
        wanted = {names[0]: first, names[-1]: second}
        taken = bill.affordable(now, wanted)
        assert all(taken.get(kind, 0) <= slots for kind, slots in wanted.items())
        end = bill.lasts_until(now, taken, 1e4)
        bill.resize(taken, now)
    last = min(end, 1e4) + RELEASE_SECONDS
    assert bill.spent(last) <= budget * (1 + 1e-9)


@given(st.floats(1.0, 1e5), st.integers(1, 8))
def test_money_that_is_there_is_spent(budget: float, slots: int) -> None:
    bill = Invoice(Tariff(budget, {"": Rate(((0.0, 1.0),))}))
    bill.resize({"": slots}, 0.0)
    end = bill.lasts_until(0.0, {"": slots}, 1e6)
    assert bill.spent(end + RELEASE_SECONDS + 1.1) > budget or end == 1e6 or budget < slots * 3


def event(number: int, at: float, kind: str, slot: int | None = None, **detail: object) -> Event:
    worker = str(detail.pop("worker", "w"))
    return Event(number, at, kind, 0, slot, 1, 1, worker, detail)


def test_each_slot_is_billed_by_its_host() -> None:
    budget = make_budget(1e6, {"big": Price(7200.0), "small": Price(3600.0)})
    assert budget is not None
    tariff = tariff_of(budget, 0.0)
    events = [
        event(1, 0.0, "register", worker="b", type="big"),
        event(2, 0.0, "register", worker="s", type="small"),
        event(3, 10.0, "pool", slots=3, until=1e9, types={"big": 1, "small": 2}),
        event(4, 12.0, "acquire", 1, worker="b"),
        event(5, 12.0, "acquire", 2, worker="s"),
        event(6, 20.0, "pool", slots=1, until=1e9, types={"small": 1}),
        event(8, 25.0, "release", 1, worker="b"),
        event(9, 40.0, "settle"),
    ]
    # big from 10 until it was left at 25; two small ones until 20, one until 40
    assert invoice_of(events, tariff).spent(99.0) == pytest.approx(15 * 2 + 10 + 30)
    later = [*events, event(7, 22.0, "price", type="small", per_hour=36000.0, slots=1)]
    assert invoice_of(later, tariff).spent(99.0) == pytest.approx(15 * 2 + 10 + 12 + 18 * 10)
    spent = [
        invoice_of([e for e in later if e.at <= at], tariff, at).spent(at) for at in range(60)
    ]
    assert all(a <= b for a, b in pairwise(spent))


def test_a_clock_that_is_set_back_changes_no_bill_but_by_that_much() -> None:
    tariff = Tariff(1e6, {"": Rate(((0.0, 1.0),))})
    events = [
        event(1, 3600.0, "pool", slots=2, until=1e9),
        event(2, 3540.0, "pool", slots=0, until=1e9),  # a minute later, set back by two
        event(3, 3700.0, "pool", slots=1, until=1e9),
        event(4, 3720.0, "settle"),
    ]
    assert invoice_of(events[:2], tariff).spent(1e6) <= 2 * 60
    assert invoice_of(events[::-1], tariff).spent(1e6) == pytest.approx(2 + 20)
    assert [at for at, _ in invoices(events, tariff)] == [3600.0, 3600.0, 3700.0, 3720.0, math.inf]


def test_a_clock_that_is_ahead_for_a_moment_bills_no_hours() -> None:
    tariff = Tariff(1e6, {"": Rate(((0.0, 1.0),))})
    visible = Visible([event(1, 0.0, "pool", slots=1, until=1e9)])
    ledger = BillingLedger(visible.table(), tariff)
    ledger.read(60.0)
    visible.events.append(event(2, 36060.0, "pool", slots=2, until=1e9))
    ledger.read(36060.0)  # the clock is ten hours ahead
    ledger.read(62.0)  # and right again
    assert ledger.spent(62.0) == pytest.approx(62.0, abs=3)
    visible.events.append(event(3, 63.0, "pool", slots=1, until=1e9))
    for one in (ledger, BillingLedger(visible.table(), tariff)):
        one.read(3663.0)
        assert one.spent(3663.0) == pytest.approx(3663.0, abs=3)
    assert invoice_of(visible.events, tariff).spent(3663.0) == pytest.approx(3663.0, abs=3)
    for one in (ledger, BillingLedger(visible.table(), tariff)):
        one.read(72000.0)  # past the moment that never was
        assert one.spent(72000.0) == pytest.approx(72000.0, abs=3)


def test_a_transaction_that_waited_is_billed_after_the_one_it_waited_for() -> None:
    """PostgreSQL gives it the time of its beginning; its row comes later."""
    tariff = Tariff(1e6, {"": Rate(((0.0, 1.0),))})
    events = [
        event(1, 10.0, "acquire", 1),
        event(2, 20.0, "release", 1),
        event(3, 19.6, "acquire", 1),
    ]
    assert invoice_of(events, tariff).since == {"": [20.0]}


def test_a_tables_times_count_from_the_start_or_are_instants() -> None:
    price = Price(3600.0, then=(("1970-01-01T01:00:00+00:00", 36000.0), ("10m", 7200.0)))
    budget = Budget(100.0, price)
    rate = tariff_of(budget, 100.0).rates[""]
    assert [rate.at(at) for at in (0.0, 699.0, 700.0, 3599.0, 3600.0)] == [1, 1, 2, 2, 10]


def test_the_end_of_the_money_knows_a_rise_ahead() -> None:
    flat = Invoice(Tariff(100.0, {"": Rate(((0.0, 1.0),))}))
    rising = Invoice(replace(flat.tariff, rates={"": Rate(((0.0, 1.0), (50.0, 10.0)))}))
    assert flat.lasts_until(0.0, {"": 1}, 1e4) == pytest.approx(98.0)
    assert rising.lasts_until(0.0, {"": 1}, 1e4) == pytest.approx(53.0)


def test_an_event_that_is_committed_late_is_billed_though_a_thousand_came_before_it() -> None:
    def event(number: int, kind: str, **detail: object) -> Event:
        return Event(number, 100.0, kind, 0, 1, 1, 1, "w", detail, 1)

    rows = [event(1, "pool", slots=1, until=900.0), event(1500, "register")]

    class Late(MemoryTable):
        def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
            return [row for row in rows if row.id > after]

    flat = Tariff(100.0, {"": Rate(((0.0, 0.01),), granularity=1.0)})
    ledger = BillingLedger(Late(now=lambda: 0.0), flat)
    ledger.read(101.0)
    assert ledger.wanted == {"": 1}
    rows.insert(1, event(2, "pool", slots=3, until=900.0))
    ledger.read(102.0)
    assert ledger.wanted == {"": 3}


def test_a_study_that_goes_on_in_another_pool_goes_on_with_its_bill() -> None:
    now = [0.0]
    first = MemoryTable("first", now=lambda: now[0])
    second = MemoryTable("second", now=lambda: now[0], database=first.database)
    first.register("a", "host", 1, [], 1)
    term = first.elect_planner("a")
    assert term is not None
    first.resize_pool("a", term, 1, 900.0)
    now[0] = 50.0
    first.resize_pool("a", term, 0, 900.0)
    ledger = BillingLedger(second, Tariff(100.0, {"": Rate(((0.0, 1.0),))}))
    ledger.read(now[0])
    assert ledger.spent(now[0]) == pytest.approx(50.0)


SLOTS, WORKERS = st.integers(1, 3), st.sampled_from(["a", "b"])
HAPPENED = st.lists(
    st.one_of(
        st.tuples(st.just("pool"), st.integers(0, 3), st.floats(5.0, 100.0)),
        st.tuples(st.just("acquire"), SLOTS, WORKERS),
        st.tuples(st.just("release"), SLOTS, WORKERS),
        st.tuples(st.just("reap"), SLOTS, WORKERS),
        st.tuples(st.just("register"), st.sampled_from(["big", "small"]), WORKERS),
        st.tuples(st.just("price"), st.sampled_from(["big", "small"]), st.floats(1.0, 9e4)),
        st.tuples(st.sampled_from(["settle", "rest"]), st.just(0), st.just("")),
    ),
    max_size=40,
)
PACES = st.lists(st.sampled_from([0.0, 1.0, 7.0, 25.0]), min_size=40, max_size=40)


def audit(happened: Sequence[tuple[Any, ...]], paces: Sequence[float]) -> list[Event]:
    """Events as the table writes them: fences rise with each change of a slot's holder."""
    now, fences, events = 100.0, dict.fromkeys((1, 2, 3), 1), []
    for number, ((kind, one, other), pace) in enumerate(zip(happened, paces, strict=False), 1):
        now += pace
        slot, worker, detail = None, "w", {}
        if kind in ("acquire", "release", "reap"):
            slot, worker = one, other
            fences[slot] += 1
        elif kind == "register":
            worker, detail = other, {"type": one}
        elif kind == "price":
            detail = {"type": one, "per_hour": other, "slots": 1}
        elif kind == "pool":
            types = {"big": one, "small": 1}
            detail = {"slots": one + 1, "until": now + other, "types": types}
        elif kind == "rest":
            detail = {"since": now}
        fence = None if slot is None else fences[slot]
        events.append(Event(2 * number, now, kind, 0, slot, fence, 1, worker, detail, 1))
    return events


@dataclass
class Visible:
    """What is committed of an audit."""

    events: list[Event] = field(default_factory=list)

    def table(self) -> MemoryTable:
        """A table that has it."""
        visible = self

        class Table(MemoryTable):
            def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
                rows = [e for e in visible.events if kinds is None or e.kind in kinds]
                return sorted([e for e in rows if e.id > after], key=lambda e: e.id)[: tail.PAGE]

        return Table(now=lambda: 0.0)


@given(HAPPENED, PACES, st.lists(st.integers(0, 3), min_size=40, max_size=40), st.integers(2, 9))
def test_a_ledger_that_reads_on_bills_what_one_bills_that_reads_everything(
    happened: list[tuple[Any, ...]], paces: list[float], late: list[int], page: int
) -> None:
    """Also of events that are committed late, and of slots that are reaped long afterwards."""
    prices = {"big": Price(7200.0), "small": Price(3600.0)}
    budget = make_budget(1e6, prices)
    assert budget is not None
    tariff, visible, waiting = tariff_of(budget, 0.0), Visible(), []
    before, tail.PAGE = tail.PAGE, page
    try:
        ledger = BillingLedger(visible.table(), tariff)
        for event_, looks in zip(audit(happened, paces), late, strict=False):
            now = event_.at
            waiting.append((now + looks, event_))
            visible.events += [e for due, e in waiting if due <= now or now - e.at > 5.0]
            waiting = [(due, e) for due, e in waiting if e not in visible.events]
            ledger.read(now)
            whole = invoice_of(visible.events, tariff, now)
            assert ledger.spent(now) == pytest.approx(whole.spent(now))
            assert {k: v for k, v in ledger._invoice.since.items() if v} == {
                k: v for k, v in whole.since.items() if v
            }
            assert (+Counter(ledger.wanted), ledger._until) == (
                +Counter(wanted_of(visible.events, tariff, now)[0]),
                wanted_of(visible.events, tariff, now)[1],
            )
    finally:
        tail.PAGE = before


def test_one_event_more_costs_the_same_however_many_came_before() -> None:
    def cost(count: int) -> tuple[int, int]:
        visible = Visible(
            [
                Event(2 * i, float(i), ("acquire", "release")[i % 2], 0, i // 2 % 8, i, 1, "w", {})
                for i in range(1, count)
            ]
        )
        ledger = BillingLedger(visible.table(), Tariff(1e6, {"": Rate(((0.0, 1.0),))}))
        ledger.read(float(count))
        last = Event(2 * count, float(count), "acquire", 0, 9, 1, 1, "w", {})
        visible.events = [last]  # what is not read again need not be there
        return instructions(lambda: ledger.read(count + 0.5)), len(ledger._open_events)

    (few, kept), (many, still) = cost(200), cost(4000)
    assert many <= 1.1 * few
    assert still == kept <= 25, "what is final is not kept"


def test_a_slot_that_is_reaped_hours_later_was_nobodys_bill() -> None:
    tariff = Tariff(1e6, {"": Rate(((0.0, 1.0),))})
    visible = Visible([event(1, 0.0, "acquire", 1), event(2, 0.0, "acquire", 2)])
    ledger = BillingLedger(visible.table(), tariff)
    ledger.read(1.0)
    ledger.read(3600.0)
    assert ledger.spent(3600.0) == pytest.approx(7200.0)
    visible.events.append(Event(3, 3600.0, "reap", 0, 2, 2, 1, "w", {}))
    ledger.read(3600.0)
    assert ledger.spent(3600.0) == pytest.approx(3600.0)
