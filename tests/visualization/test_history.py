"""Intervals and series agree with the table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import pytest
from histories import Recipe, paid, recipes
from hypothesis import given, settings
from hypothesis import strategies as st

from optuna_deadline.allocation.records import Event, ReportRow
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.history.forecast import forecast
from optuna_deadline.history.reader import HistoryReader
from optuna_deadline.history.records import History
from optuna_deadline.history.series import (
    available_slots,
    integral,
    integrals_until,
    slots_in_use,
    slots_starting_or_stopping,
    spent,
    value_at,
)
from optuna_deadline.planning.billing.ledger import invoice_of
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.study.terms import Terms


@given(recipes)
def test_spells_say_what_the_table_says(recipe: Recipe) -> None:
    history = recipe.make()
    by_slot = defaultdict(list)
    for hold in history.slot_intervals:
        by_slot[hold.slot].append(hold)
        assert hold.end is None or hold.start <= hold.end
    for found in by_slot.values():
        for one, next_ in pairwise(found):
            assert one.end is not None and one.end <= next_.start, "two holders of one slot"
    account = sum(
        row.slots * ((history.end if row.ended is None else row.ended) - row.granted)
        for row in history.segments
    )
    told = history.timelines
    assert integral(slots_in_use(history.slot_intervals), 0.0, history.end) == pytest.approx(
        account
    )
    assert sum(life.slot_seconds(history.end) for life in told) == pytest.approx(account)
    held_now = sum(slot.holder is not None for slot in history.slots)
    assert value_at(slots_in_use(history.slot_intervals), history.end) == held_now
    assert {life.number: life.state for life in told} == {
        line.number: line.state for line in history.trials
    }
    assert [life.number for life in told if life.slots] == [
        line.number for line in history.trials if line.owner is not None
    ]


@settings(max_examples=20)
@given(recipes)
def test_a_life_is_told_without_gaps(recipe: Recipe) -> None:
    history = recipe.make()
    segments = {(row.number, row.fence): row for row in history.segments}
    for life in history.timelines:
        assert len(life.segments) == sum(number == life.number for number, _ in segments)
        stretches = sorted(
            (part.start, math.inf if part.end is None else part.end)
            for part in (*life.segments, *life.waits)
        )
        for (_, end), (start, _) in pairwise(stretches):
            assert end == start
        for spell in life.segments:
            row = segments[life.number, spell.fence]
            assert (len(spell.slots), spell.start, spell.end) == (
                row.slots,
                row.granted,
                row.ended,
            )
            assert spell.reason


@settings(max_examples=20)
@given(recipes)
def test_slots_in_use_never_exceed_those_on_hand(recipe: Recipe) -> None:
    history = recipe.make()
    hand, used, lost = (
        available_slots(history),
        slots_in_use(history.slot_intervals),
        slots_starting_or_stopping(history),
    )
    most = recipe.slots * recipe.hosts
    assert all(0 <= count <= most for _, count in hand)
    assert integral(lost, 0.0, history.end) <= integral(used, 0.0, history.end) + 1e-6
    if not recipe.faulty:
        assert integral(used, 0.0, history.end) <= integral(hand, 0.0, history.end) + 1e-6
        if math.isfinite(recipe.stopped):
            assert value_at(hand, history.end) == most


@settings(max_examples=10)
@given(paid)
def test_money_is_told_as_the_ledger_has_it(recipe: Recipe) -> None:
    history = recipe.make()
    assert history.budget is not None
    told = spent(history)
    values = [value for _, value in told]
    assert values == sorted(values)
    whole = invoice_of(history.money_events, tariff_of(history.budget, history.started))
    assert values[-1] == pytest.approx(whole.spent(history.end))


steps = st.lists(
    st.tuples(st.floats(0, 100), st.integers(0, 5).map(float)),
    max_size=8,
    unique_by=lambda s: s[0],
).map(sorted)


@given(steps, st.lists(st.floats(0, 120), min_size=1, max_size=8).map(sorted))
def test_running_totals_are_areas(given_: list[tuple[float, float]], at: list[float]) -> None:
    for instant, total in zip(at, integrals_until(given_, at), strict=True):
        assert total == pytest.approx(integral(given_, at[0], instant))


@settings(max_examples=15)
@given(recipes)
def test_the_forecast_is_never_worse_than_what_is_in_hand(recipe: Recipe) -> None:
    history = recipe.make()
    expected = forecast(history)
    best = history.improvements
    assert expected.best == (best[-1].value if best else None)
    sign = 1.0 if history.direction == "maximize" else -1.0
    if expected.best is not None:
        figures = (expected.best, expected.low, expected.expected, expected.high)
        scores = [sign * figure for figure in figures if figure is not None]
        assert scores == sorted(scores) and all(map(math.isfinite, scores))
    for fan in expected.fans:
        assert list(fan.at) == sorted(fan.at) and fan.at[-1] == pytest.approx(history.deadline)
        for low, mid, high in zip(fan.low, fan.mid, fan.high, strict=True):
            assert sign * low <= sign * mid <= sign * high


def test_a_history_read_on_is_one_read_anew() -> None:
    early, late = Recipe(stopped=0.5).make(), Recipe(stopped=0.9).make()
    assert isinstance(early, History)
    assert late.events[: len(early.events)] == early.events


def test_what_is_committed_late_is_shown_though_a_thousand_came_before_it() -> None:
    """Ids are numbered for all studies of a database together."""
    events = [Event(i, 7.0, "open", i, None, None, 1, "w", {}, 1) for i in (1, 2, 1500)]
    reports = [ReportRow(i, 0, i, 0.1, 1, 1.0, 7.0) for i in (1, 2, 1500)]
    late = {2}

    class Late(MemoryTable):
        def events(self, after: int = 0, kinds: Sequence[str] | None = None) -> list[Event]:
            return [row for row in events if row.id > after and row.id not in late]

        def reports(self, after: int = 0) -> list[ReportRow]:
            return [row for row in reports if row.id > after and row.id not in late]

    terms = Terms(1, "study", "maximize", 0.0, 99.0, 99.0, "fifo", {}, 8.0)
    reader = HistoryReader(Late(now=lambda: 8.0, deadline=99.0), terms)
    assert [row.id for row in reader.read().reports] == [1, 1500]
    late.clear()
    found = reader.read()
    assert [row.id for row in found.reports] == [row.id for row in found.events] == [1, 2, 1500]
