"""Gangs over several workers: where they may be, when they are worth it, and when they move."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.allocation.records import Assignment, PlannedTrial, Worker
from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.planning.cross_host import NO_GROUPS, SpreadTradeoff, WorkerGroups, groups_of
from optuna_deadline.planning.placement.data_locality import HostBinding
from optuna_deadline.planning.placement.gangs import (
    SpreadRules,
    assign_workers,
    changed_assignments,
    fit_to_batches,
)
from optuna_deadline.policies import Order, Pause, Run

ABC = WorkerGroups((frozenset("abc"),))
SPREAD = SpreadRules(ABC, SpreadTradeoff(Speedup(), 3600.0, 10.0))
CAPACITIES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4))
ORDERS = st.dictionaries(
    st.integers(0, 9),
    st.one_of(st.builds(Run, st.integers(1, 8), st.just("r")), st.just(Pause("p"))),
)


def row(line: Assignment, pinned: int | None = None) -> PlannedTrial:
    return PlannedTrial(
        line.number, line.number, "running", 1, line.worker, line.mode, line.worker, line.slots,
        line.reason, 0.0, None, None, False, 0, pinned=pinned, others=line.others,
    )  # fmt: skip


def worker(name: str, address: str | None = "here", store: str | None = "s3://b") -> Worker:
    return Worker(name, "pool", 1, name, 1, "live", 9.0, store=store, address=address)


def parts(line: Assignment) -> dict[str | None, int]:
    """Slots by worker."""
    return {line.worker: line.slots - sum(n for _, n in line.others), **dict(line.others)}


def test_gangs_cross_workers_that_said_so_and_share_their_checkpoints() -> None:
    assert groups_of([worker("a"), worker("b")]) == WorkerGroups((frozenset("ab"),))
    assert groups_of([worker("a"), worker("b", address=None)]).groups == ()
    assert groups_of([worker("a"), worker("b", store="m2:/own")]).groups == ()
    assert groups_of([worker("a", store=None), worker("b", store=None)]).groups == ()
    assert groups_of([worker("a"), replace(worker("b"), drained=1.0)]).groups == ()


def test_a_pair_that_is_kept_apart_leaves_the_largest_groups() -> None:
    names = [worker(name) for name in "abcd"]
    apart = groups_of(names, {frozenset("ab")}).groups
    assert set(apart) == {frozenset("acd"), frozenset("bcd")}
    apart = groups_of(names, {frozenset("a" + other) for other in "bcd"}).groups
    assert apart == (frozenset("bcd"),)
    assert groups_of(names[:2], {frozenset("ab")}) == NO_GROUPS


@given(
    st.sets(st.sampled_from("abcdef")),
    st.sets(st.frozensets(st.sampled_from("abcdef"), min_size=2, max_size=2)),
)
def test_groups_are_the_largest_ones_without_a_pair_that_is_kept_apart(
    names: set[str], apart: set[frozenset[str]]
) -> None:
    groups = groups_of([worker(name) for name in sorted(names)], apart).groups
    assert len(set(groups)) == len(groups)
    for size in range(2, len(names) + 1):
        for some in map(frozenset, combinations(sorted(names), size)):
            allowed = not any(pair <= some for pair in apart)
            assert any(some <= group for group in groups) == allowed
    assert not any(one < other for one in groups for other in groups)


def test_the_largest_gang_has_equal_parts() -> None:
    assert ABC.largest({"a": 4, "b": 4}) == 8
    assert ABC.largest({"a": 4, "b": 2}) == 4
    assert ABC.largest({"a": 3, "b": 2, "c": 2}) == 6
    assert ABC.largest({"a": 1, "d": 3}) == 3
    assert NO_GROUPS.largest({"a": 4, "b": 4}) == 4


@given(CAPACITIES)
def test_no_larger_gang_could_be_spread(capacities: dict[str, int]) -> None:
    largest, room = ABC.largest(capacities), sum(capacities.values())
    assert not any(ABC.spread(size, capacities) for size in range(largest + 1, room + 1))
    assert largest == max(capacities.values(), default=0) or ABC.spread(largest, capacities)


@given(ORDERS, CAPACITIES, st.booleans())
def test_no_worker_gives_more_than_it_has_and_parts_are_equal(
    orders: dict[int, Order], capacities: dict[str, int], pinned: bool
) -> None:
    paused = {
        number: row(Assignment(number, "pause", None, 0, ""), order.slots)
        for number, order in orders.items()
        if pinned and isinstance(order, Run)
    }
    used: dict[str | None, int] = {}
    for line in assign_workers(orders, capacities, paused, spread=SPREAD):
        for name, slots in parts(line).items() if line.mode == "run" else ():
            assert slots >= 1
            used[name] = used.get(name, 0) + slots
        if line.others:
            assert set(parts(line)) <= set("abc") and len(set(parts(line).values())) == 1
            assert max(capacities.values()) > 0
        order = orders[line.number]
        if pinned and line.mode == "run" and isinstance(order, Run):
            assert line.slots == order.slots
    assert all(slots <= capacities[str(name)] for name, slots in used.items())


@given(ORDERS, CAPACITIES)
def test_placing_again_moves_nobody(orders: dict[int, Order], capacities: dict[str, int]) -> None:
    lines = assign_workers(orders, capacities, {}, spread=SPREAD)
    current = {line.number: row(line) for line in lines}
    placed = {line.number: Run(line.slots, "r") for line in lines if line.mode == "run"}
    again: dict[int, Order] = {n: placed.get(n, Pause("p")) for n in orders}
    assert (
        changed_assignments(assign_workers(again, capacities, current, spread=SPREAD), current)
        == []
    )


def test_a_gang_is_packed_where_it_can_be() -> None:
    [line] = assign_workers({0: Run(2, "")}, {"a": 1, "b": 1, "c": 2}, {}, spread=SPREAD)
    assert (line.worker, line.slots, line.others) == ("c", 2, ())


def test_it_is_spread_where_no_worker_has_room_and_that_is_worth_it() -> None:
    [line] = assign_workers({0: Run(4, "")}, {"a": 2, "b": 2, "c": 1}, {}, spread=SPREAD)
    assert parts(line) == {"a": 2, "b": 2}
    # Three hosts with one more slot than fits on one: hardly faster, and it may be slower.
    [line] = assign_workers({0: Run(3, "")}, {"a": 2, "b": 1, "c": 1}, {}, spread=SPREAD)
    assert (line.slots, line.others) == (2, ())
    slow = replace(SPREAD, tradeoff=SpreadTradeoff(Speedup(crossing={4: 1.5}), 3600.0, 10.0))
    [line] = assign_workers({0: Run(4, "")}, {"a": 2, "b": 2}, {}, spread=slow)
    assert (line.slots, line.others) == (2, ())


def test_a_pinned_gang_is_spread_at_any_price() -> None:
    pinned = {0: row(Assignment(0, "pause", None, 0, ""), 2)}
    slow = replace(SPREAD, tradeoff=SpreadTradeoff(Speedup(crossing={2: 0.1}), 3600.0, 10.0))
    [line] = assign_workers({0: Run(2, "")}, {"a": 1, "b": 1}, pinned, spread=slow)
    assert parts(line) == {"a": 1, "b": 1}
    [line] = assign_workers({0: Run(2, "")}, {"a": 1, "b": 1}, pinned)
    assert line.mode == "pause"


def test_what_can_go_on_with_some_workers_only_is_spread_over_these() -> None:
    bounds = {0: HostBinding(frozenset("ab"), "a")}
    [line] = assign_workers({0: Run(4, "")}, {"a": 2, "b": 2, "c": 2}, {}, bounds, SPREAD)
    assert set(parts(line)) == {"a", "b"}
    [line] = assign_workers({0: Run(4, "")}, {"a": 2, "b": 1, "c": 2}, {}, bounds, SPREAD)
    assert (line.worker, line.slots, line.others) == ("a", 2, ())


@pytest.mark.parametrize(("left", "gathers"), [(3600.0, True), (15.0, False)])
def test_a_spread_gang_is_brought_together_when_that_pays(left: float, gathers: bool) -> None:
    spread = replace(SPREAD, tradeoff=SpreadTradeoff(Speedup(), left, 10.0))
    before = Assignment(0, "run", "a", 2, "", (("b", 1),))
    [line] = assign_workers({0: Run(2, "")}, {"a": 2, "b": 1}, {0: row(before)}, spread=spread)
    assert (line.others == ()) == gathers
    fast = replace(spread, tradeoff=SpreadTradeoff(Speedup({2: 1.8}, {2: 1.8}), left, 10.0))
    [line] = assign_workers({0: Run(2, "")}, {"a": 2, "b": 1}, {0: row(before)}, spread=fast)
    assert line.others == before.others


def test_one_whose_host_has_gone_is_placed_anew() -> None:
    before = Assignment(0, "run", "a", 2, "", (("b", 1),))
    [line] = assign_workers({0: Run(2, "")}, {"a": 1, "c": 1}, {0: row(before)}, spread=SPREAD)
    assert set(parts(line)) == {"a", "c"}


@pytest.mark.parametrize(
    ("batch", "spread_over", "fits"),
    [
        (16, {"a": 3, "b": 3}, {"a": 2, "b": 2}),
        (12, {"a": 3, "b": 3, "c": 3}, {"a": 2, "b": 2, "c": 2}),
        (15, {"a": 2, "b": 2}, {"a": 1}),  # three would be uneven
        (7, {"a": 1, "b": 1}, {"a": 1}),
    ],
)
def test_sizes_that_divide_a_batch_have_equal_parts_too(
    batch: int, spread_over: dict[str, int], fits: dict[str, int]
) -> None:
    others = tuple((name, slots) for name, slots in spread_over.items() if name != "a")
    line = Assignment(0, "run", "a", sum(spread_over.values()), "r", others)
    [fitted] = fit_to_batches([line], {0: replace(row(line), batch=batch)})
    assert parts(fitted) == fits and fitted.slots == sum(fits.values())
