"""Gangs stay whole on one worker, trials stay where they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.planning.placement.gangs import assign_workers, changed_assignments
from optuna_deadline.policies import Order, Pause, Retire, Run


def row(number: int, worker: str | None, slots: int, pinned: int | None = None) -> PlannedTrial:
    mode = "run" if worker else "pause"
    return PlannedTrial(
        number, number, "running", 1, worker, mode, worker, slots, "", 0.0, None, None, False, 0,
        pinned=pinned,
    )  # fmt: skip


ORDERS = st.dictionaries(
    st.integers(0, 9),
    st.one_of(st.builds(Run, st.integers(1, 4), st.just("r")), st.just(Pause("p"))),
)
CAPACITIES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 4))


@given(ORDERS, CAPACITIES)
def test_no_worker_gets_more_than_it_has(
    orders: dict[int, Order], capacities: dict[str, int]
) -> None:
    used: dict[str, int] = {}
    for line in assign_workers(orders, capacities, {}):
        if line.worker is not None:
            used[line.worker] = used.get(line.worker, 0) + line.slots
            assert line.slots >= 1
    assert all(used[worker] <= capacities[worker] for worker in used)


@given(ORDERS, CAPACITIES)
def test_placing_again_moves_nobody(orders: dict[int, Order], capacities: dict[str, int]) -> None:
    lines = assign_workers(orders, capacities, {})
    current = {line.number: row(line.number, line.worker, line.slots) for line in lines}
    placed = {line.number: Run(line.slots, "r") for line in lines if line.mode == "run"}
    again: dict[int, Order] = {n: placed.get(n, Pause("p")) for n in orders}
    assert changed_assignments(assign_workers(again, capacities, current), current) == []


def test_a_gang_goes_where_it_fits_whole() -> None:
    lines = assign_workers({0: Run(2, ""), 1: Run(1, "")}, {"a": 1, "b": 2}, {})
    assert [(line.worker, line.slots) for line in lines] == [("b", 2), ("a", 1)]


def test_a_trial_stays_although_another_worker_has_more_room() -> None:
    [line] = assign_workers({0: Run(1, "")}, {"a": 1, "b": 8}, {0: row(0, "a", 1)})
    assert line.worker == "a"


def test_where_no_room_is_a_trial_waits_and_a_gang_takes_what_there_is() -> None:
    lines = assign_workers({0: Run(4, ""), 1: Run(1, "")}, {"a": 2}, {})
    assert [(line.mode, line.slots) for line in lines] == [("run", 2), ("pause", 0)]


def test_a_retired_trial_is_stopped() -> None:
    [line] = assign_workers({0: Retire("no")}, {"a": 2}, {0: row(0, "a", 1)})
    assert (line.mode, line.worker) == ("stop", None)


@given(ORDERS, CAPACITIES, st.sets(st.integers(0, 9)))
def test_a_pinned_gang_is_whole_and_waits_for_pinned_ones_alone(
    orders: dict[int, Order], capacities: dict[str, int], pinned: set[int]
) -> None:
    pins = {n: order.slots for n, order in orders.items() if isinstance(order, Run)}
    current = {n: row(n, None, 0, pins[n]) for n in pinned & pins.keys()}
    lines = {line.number: line for line in assign_workers(orders, capacities, current)}
    free = dict(capacities)
    for number in current:
        if (worker := lines[number].worker) is not None:
            assert lines[number].slots == pins[number]
            free[worker] -= pins[number]
    waiting = [pins[number] for number in current if lines[number].worker is None]
    assert all(size > max(free.values(), default=0) for size in waiting)


def test_a_pinned_gang_takes_the_room_of_those_that_are_at_home() -> None:
    current = {0: row(0, None, 0, pinned=3), 1: row(1, "a", 2), 2: row(2, "b", 2)}
    lines = assign_workers(
        {0: Run(3, ""), 1: Run(2, ""), 2: Run(2, "")}, {"a": 4, "b": 2}, current
    )
    assert [(line.worker, line.slots) for line in lines] == [("a", 3), ("a", 1), ("b", 2)]
