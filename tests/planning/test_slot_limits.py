"""A trial that cannot train on many slots has no more, and others have the rest."""

from __future__ import annotations

from optuna_deadline.allocation.memory import MemoryTable
from optuna_deadline.allocation.records import Grant
from optuna_deadline.planning.planner import Planner
from optuna_deadline.policies import Order, Pause, Plan, Run, Snapshot
from optuna_deadline.simulation.outside import CountedTrials


class LargestFirst:
    """Of two trials, the largest gang that there can be for the first, the rest for the other."""

    def plan(self, snapshot: Snapshot) -> Plan:
        orders: dict[int, Order] = {}
        left = snapshot.capacity
        for trial in snapshot.trials:
            if trial.alive:
                size = min(left, snapshot.largest_gang)
                orders[trial.number] = Run(size, "fits") if size else Pause("waits")
                left -= size
        return Plan(orders, start=max(0, 2 - len(snapshot.trials)), gate_open=False)


class Lab:
    """A worker of two slots that does what it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.table = MemoryTable("pool", 1, now=lambda: self.now, deadline=2000.0)
        self.table.register("a", "a", 1, [], 2)
        self.planner = Planner(
            CountedTrials(), self.table, LargestFirst(), direction="maximize", started=0.0,
            me="a", clock=lambda: self.now,
        )  # fmt: skip

    def planned(self) -> dict[int, int]:
        """The slots that each living trial is to have, once planning again changes nothing."""
        for _ in range(3):
            self.now += 1
            self.planner.tick()
        assert not self.planner.tick(), "planning again changes nothing"
        return {line.number: line.slots for line in self.table.trials() if line.alive}

    def grant(self, number: int) -> Grant:
        wanted = self.table.trials()[number].slots
        grant = self.table.acquire("a", number, self.table.free_slots("a")[:wanted])
        assert grant is not None
        return grant


def test_a_trial_is_directed_down_to_its_limit_and_others_get_the_rest() -> None:
    lab = Lab()
    assert lab.planned() == {0: 2, 1: 0}
    grant = lab.grant(0)
    lab.table.limit_slots("a", grant, 1, "its batches are whole")
    assert lab.planned() == {0: 1, 1: 1}
    assert lab.table.trials()[0].reason == "1 of 2: it can train on no more"
    lab.table.release("a", grant, "paused", ended="limit")
    assert lab.grant(0).size == lab.grant(1).size == 1
    assert lab.planned() == {0: 1, 1: 1}


def test_where_every_trial_is_limited_no_slot_is_planned_in_vain() -> None:
    lab = Lab()
    assert lab.planned() == {0: 2, 1: 0}
    grant = lab.grant(0)
    lab.table.limit_slots("a", grant, 1, "its batches are whole")
    lab.table.release("a", grant, "paused", ended="limit")
    lab.planned()
    lab.table.limit_slots("a", lab.grant(1), 1, "its batches are whole")
    assert lab.planned() == {0: 1, 1: 1}


def test_a_pin_above_the_limit_is_the_limit() -> None:
    lab = Lab()
    lab.planned()
    lab.table.limit_slots("a", lab.grant(0), 1, "its batches are whole")
    assert lab.table.pin(0, 2)
    assert lab.planned() == {0: 1, 1: 1}
