"""Gangs that divide their trial's batch, and the words that say so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from optuna_deadline.allocation.records import Assignment, PlannedTrial
from optuna_deadline.planning.placement.gangs import fit_to_batches
from optuna_deadline.policies import Plan, Report, Run, Snapshot, TrialView, make_policy
from optuna_deadline.policies.gang_sizes import share_out
from optuna_deadline.policies.wrappers import BatchDivisorPolicy, largest_divisor

SEEN = (Report(1, 0.5, 10.0), Report(2, 0.6, 20.0))


def study(capacity: int, *batches: int | None, largest: int = 8) -> Snapshot:
    trials = [
        TrialView(n, "running", 1, SEEN, horizon=50, step_seconds=10.0, batch=batch)
        for n, batch in enumerate(batches)
    ]
    return Snapshot(100.0, 0.0, 1000.0, capacity, min(largest, capacity), tuple(trials))


class Shared:
    """Deals all slots out, as most policies do with what is left over."""

    def plan(self, view: Snapshot) -> Plan:
        return Plan(share_out(view, view.trials, held=False))


def sizes(view: Snapshot) -> list[tuple[int, str]]:
    orders = BatchDivisorPolicy(Shared()).plan(view).orders.values()
    return [(order.slots, order.reason) for order in orders if isinstance(order, Run)]


@pytest.mark.parametrize(
    ("slots", "batch", "size"),
    [(3, 64, 2), (4, 64, 4), (7, 64, 4), (5, 15, 5), (5, 7, 1), (0, 9, 0), (3, None, 3)],
)
def test_the_largest_size_that_fits(slots: int, batch: int | None, size: int) -> None:
    assert largest_divisor(slots, batch) == size


def test_who_minds_gets_a_size_that_fits_and_the_reason() -> None:
    [(slots, reason)] = sizes(study(3, 64))
    assert slots == 2 and reason.endswith("; 3 slots do not divide its batch of 64")
    [(slots, reason)] = sizes(study(4, 64))
    assert slots == 4 and "divide" not in reason
    [(slots, reason)] = sizes(study(3, None))
    assert slots == 3 and "divide" not in reason


def test_what_one_cannot_use_another_gets() -> None:
    first, second = (slots for slots, _ in sizes(study(7, 64, 64)))
    assert (first, second) == (4, 2), "and not 4 and 3, nor twice 3"
    plan = sizes(study(6, 64, None))
    assert plan[0] == (2, "2 of 3: 3 slots do not divide its batch of 64") and plan[1][0] == 3


def line(batch: int | None, pinned: int | None = None) -> PlannedTrial:
    return PlannedTrial(
        0,
        100,
        "running",
        1,
        "a",
        "run",
        "a",
        4,
        "",
        0.0,
        None,
        None,
        False,
        0,
        None,
        pinned,
        batch,
    )


@pytest.mark.parametrize(
    ("slots", "others", "size", "left"),
    [
        (3, (), 2, ()),
        (4, (("b", 2),), 4, (("b", 2),)),
        (6, (("b", 3),), 4, (("b", 2),)),
        (9, (("b", 3), ("c", 3)), 2, ()),  # three hosts would give uneven parts
    ],
)
def test_placed_on_less_than_planned(
    slots: int, others: tuple[tuple[str, int], ...], size: int, left: tuple[tuple[str, int], ...]
) -> None:
    placed = Assignment(0, "run", "a", slots, "grows", others)
    [fitted] = fit_to_batches([placed], {0: line(64)})
    assert (fitted.slots, fitted.others) == (size, left)
    assert ("do not divide its batch of 64" in fitted.reason) == (size != slots)
    assert fit_to_batches([placed], {0: line(None)}) == [placed]
    assert fit_to_batches([placed], {0: line(64, pinned=3)}) == [placed], (
        "a person has asked for it"
    )


def test_policies_without_batches_are_asked_as_ever() -> None:
    seen: list[Snapshot] = []

    class Asked:
        def __init__(self, plan: Callable[[Snapshot], object]) -> None:
            self.plan = lambda view: (seen.append(view), plan(view))[1]

    view = study(3, None, None)
    BatchDivisorPolicy(Asked(make_policy("fifo", {}).plan)).plan(view)  # type: ignore[arg-type]
    assert seen[0] is view
