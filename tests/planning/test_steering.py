"""Requests on the table become plans at the planner's next look, and end no study."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.planning.billing.budget import BudgetAccount
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.pool_leader import PoolLeader, read_pool
from optuna_deadline.policies import Money, Pause, Plan, Run, Snapshot
from optuna_deadline.simulation.environment import CountedTrials


class OneEach:
    """A slot for each of so many trials, the oldest first, and an end when they have ended."""

    def __init__(self, most: int) -> None:
        self.most = most

    def plan(self, snapshot: Snapshot) -> Plan:
        money = snapshot.money
        assert money or snapshot.capacity > 0, "policies are not asked about none"
        alive = [trial.number for trial in snapshot.trials if trial.alive]
        room = snapshot.capacity
        runs = {n: Run(1, "fits") if i < room else Pause("waits") for i, n in enumerate(alive)}
        start = min(room - len(alive), self.most - len(snapshot.trials))
        size = None if money is None else money.offer
        return Plan(orders=runs, start=max(0, start), gate_open=False, pool_slots=size)


class FullPurse:
    """Pays for all slots on offer until the deadline."""

    wanted: Mapping[str, int] = {}

    def read(self, now: float) -> None: ...

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        return Money(budget=1e6, spent=0.0, price=1.0, offer=most, held=most)

    def affordable(self, now: float, slots: Mapping[str, int]) -> dict[str, int]:
        return dict(slots)

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        return latest

    def host_type(self, worker: str | None = None) -> str:
        return ""

    def price(self, kind: str, now: float) -> float:
        return 1.0


class Lab:
    """A study on two hosts of two slots, whose workers do nothing but be there."""

    def __init__(self, most: int = 3, purse: BudgetAccount | None = None) -> None:
        self.now = 1000.0
        self.database = MemoryDatabase()
        self.table = self.open()
        for host in "ab":
            self.table.register(host, host, 1, [], 2)
        self.planner = Planner(
            CountedTrials(), self.table, OneEach(most), direction="maximize",
            worker_id="a", clock=lambda: self.now, budget_account=purse,
        )  # fmt: skip

    def open(self, study: int = 1) -> MemoryTable:
        return MemoryTable(
            "pool", study, now=lambda: self.now, deadline=2000.0, database=self.database
        )

    def planned(self) -> dict[int, tuple[str | None, int]]:
        """Where the plan wants each living trial, after some looks: another changes nothing."""
        for _ in range(3):
            self.now += 1
            self.planner.tick()
        lines = self.table.trials()
        assert not self.planner.tick(), "planning again changes nothing"
        return {line.number: (line.worker, line.slots) for line in lines if line.alive}


@pytest.fixture
def lab() -> Lab:
    lab = Lab()
    assert lab.planned() == {0: ("a", 1), 1: ("a", 1), 2: ("b", 1)}
    return lab


def test_a_held_trial_pauses_and_goes_on_when_it_is_let_go(lab: Lab) -> None:
    lab.table.hold(1, True)
    assert lab.planned() == {0: ("a", 1), 1: (None, 0), 2: ("b", 1)}
    assert lab.table.trials()[1].reason == "held by request, until it is resumed"
    lab.table.hold(1, False)
    assert lab.planned()[1][1] == 1


def test_a_pinned_gang_is_whole_and_the_others_make_room(lab: Lab) -> None:
    lab.table.pin(2, 2)
    assert lab.planned() == {0: ("a", 1), 1: ("a", 1), 2: ("b", 2)}
    lab.table.pin(0, 2)
    assert lab.planned() == {0: ("a", 2), 1: (None, 0), 2: ("b", 2)}
    lab.table.pin(0, None)
    assert lab.planned() == {0: ("a", 1), 1: ("a", 1), 2: ("b", 2)}


def test_a_drained_hosts_trials_go_elsewhere(lab: Lab) -> None:
    lab.table.drain("a", True)
    assert lab.planned() == {0: ("b", 1), 1: ("b", 1), 2: (None, 0)}
    lab.table.drain("a", False)
    assert lab.planned() == {0: ("b", 1), 1: ("b", 1), 2: ("a", 1)}


@pytest.mark.parametrize("purse", [None, FullPurse()])
def test_where_every_host_is_drained_the_study_waits(purse: BudgetAccount | None) -> None:
    lab = Lab(purse=purse)
    assert lab.planned() == {0: ("a", 1), 1: ("a", 1), 2: ("b", 1)}
    lab.table.drain("a", True)
    lab.table.drain("b", True)
    assert set(lab.planned().values()) == {(None, 0)}
    assert not lab.table.orders("a").settled
    lab.table.register("c", "c", 1, [], 4)
    assert set(lab.planned().values()) == {("c", 1)}


def test_a_study_is_not_over_as_long_as_a_trial_is_held() -> None:
    lab = Lab(most=1)
    lab.planned()
    lab.table.hold(0, True)
    for _ in range(5):
        assert lab.planned() == {0: (None, 0)}
    lab.now = 1999.9
    lab.planner.tick()
    assert lab.table.orders("a").settled and lab.table.trials()[0].state == "retired"


def test_a_drained_hosts_slots_are_lent_to_nobody(lab: Lab) -> None:
    other = lab.open(study=2)
    other.register("a2", "a", 2, [], 2)
    other.register("b2", "b", 2, [], 2)
    lab.table.drain("a", True)
    assert {slot.host for slot in read_pool(lab.table).slots} == {"b"}
    leader = PoolLeader(lab.table, "even", "b", lambda: lab.now)
    leader.tick()
    assert sorted(slot.lent_to or 0 for slot in lab.table.slots() if slot.host == "b") == [1, 2]


def test_a_leader_looks_at_the_pool_once_an_interval(lab: Lab) -> None:
    leader = PoolLeader(lab.table, "even", "a", lambda: lab.now, interval=1.0)
    assert not leader.tick()
    lab.open(study=2).register("a2", "a", 2, [], 2)
    assert not leader.tick(), "planners tick after each report"
    lab.now += 1.0
    assert leader.tick()
