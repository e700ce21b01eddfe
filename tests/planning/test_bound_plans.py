"""A trial whose checkpoint one host alone has goes on there, and others use the rest."""

from __future__ import annotations

from allocation.suite.world import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from test_placement import CAPACITIES, ORDERS, row

from optuna_deadline.allocation.records import (
    CheckpointOrigin,
    Grant,
    MachineInfo,
    PlannedTrial,
    Worker,
)
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.checkpoints.sharing import reaches
from optuna_deadline.planning.best_model import CheckpointAvailability, find_winner
from optuna_deadline.planning.placement.bound_plans import BoundPlanner, plan_with_bindings
from optuna_deadline.planning.placement.data_locality import HostBinding, isolated_hosts
from optuna_deadline.planning.placement.gangs import assign_workers, changed_assignments
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.reading import Reading
from optuna_deadline.policies import Order, Pause, Plan, Run, Snapshot, TrialView
from optuna_deadline.policies.wrappers import RequestPolicy
from optuna_deadline.simulation.environment import CountedTrials

ON_A = HostBinding(frozenset({"a"}), "node-a")
BOUNDS = st.dictionaries(st.integers(0, 9), st.just(ON_A))


def worker(name: str, store: str | None) -> Worker:
    return Worker(name, "pool", 1, name, 1, "live", 0.0, store=store)


def test_who_reaches_what() -> None:
    kept = CheckpointOrigin(1, 0, "x", "a", "mark:/shared")
    assert reaches(worker("a", "other:/own"), kept)
    assert reaches(worker("b", "mark:/shared"), kept)
    assert not reaches(worker("b", "mark:/elsewhere"), kept)
    assert reaches(worker("b", "other:/own"), kept._replace(store="s3://bucket/x"))
    assert reaches(worker("b", None), kept) and reaches(worker("b", "x"), kept._replace(host=None))


def test_hosts_that_are_alone_are_named() -> None:
    shared = [worker("a", "m:/s"), worker("b", "m:/s")]
    assert isolated_hosts(shared) == frozenset()
    assert isolated_hosts([*shared, worker("c", "n:/s")]) == {"a", "b", "c"}
    assert isolated_hosts([worker("a", "s3://b/x"), worker("b", "n:/s")]) == {"b"}


@given(ORDERS, CAPACITIES, BOUNDS)
def test_a_bound_trial_is_placed_where_it_is_bound_or_not_at_all(
    orders: dict[int, Order], capacities: dict[str, int], bounds: dict[int, HostBinding]
) -> None:
    lines = assign_workers(orders, capacities, {}, bounds)
    assert all(line.worker in (None, "a") for line in lines if line.number in bounds)
    current = {line.number: row(line.number, line.worker, line.slots) for line in lines}
    placed = {line.number: Run(line.slots, "r") for line in lines if line.mode == "run"}
    again: dict[int, Order] = {n: placed.get(n, Pause("p")) for n in orders}
    assert changed_assignments(assign_workers(again, capacities, current, bounds), current) == []


class Eager:
    """Wants as many trials as there are slots, the first ones first."""

    def plan(self, snapshot: Snapshot) -> Plan:
        alive = [trial for trial in snapshot.trials if trial.alive]
        chosen = alive[: snapshot.capacity]
        orders: dict[int, Order] = {t.number: Pause("no slot is left") for t in alive}
        orders |= {t.number: Run(1, "goes on") for t in chosen}
        return Plan(orders=orders, start=snapshot.capacity - len(chosen))


def paused(count: int) -> tuple[Snapshot, dict[int, PlannedTrial]]:
    trials = tuple(TrialView(number, "paused") for number in range(count))
    snapshot = Snapshot(
        now=0.0, started=0.0, deadline=100.0, capacity=2, largest_gang=1, trials=trials
    )
    return snapshot, {number: row(number, None, 0) for number in range(count)}


def test_slots_elsewhere_are_used_by_others_while_one_waits_for_its_host() -> None:
    """Without asking again, slot b would be kept for trial 1, which cannot go there."""
    snapshot, current = paused(3)
    bounds = {0: ON_A, 1: ON_A}
    capacities = {"a": 1, "b": 1}
    plan, stuck = plan_with_bindings(RequestPolicy(Eager()), snapshot, capacities, current, bounds)
    placed = {n: order for n, order in plan.orders.items() if isinstance(order, Run)}
    assert set(placed) == {0, 2} and plan.start == 0
    assert stuck == {1: "waits for node-a, which alone has its checkpoint"}
    assert plan.orders[1] == Pause("waits for node-a, which alone has its checkpoint")


def test_whose_host_is_gone_waits_and_new_trials_start() -> None:
    snapshot, current = paused(1)
    gone = {0: HostBinding(frozenset(), "node-c")}
    plan, stuck = plan_with_bindings(
        RequestPolicy(Eager()), snapshot, {"a": 1, "b": 1}, current, gone
    )
    assert plan.start == 2 and list(stuck) == [0]
    assert plan.orders[0].reason == "waits for node-c, which alone has its checkpoint"


class Hosts:
    """A study on hosts with folders of their own, whose workers save once and do no more."""

    def __init__(self, *stores: str) -> None:
        self.now = 1000.0
        self.table = MemoryTable("pool", 1, now=lambda: self.now, deadline=9000.0)
        for host, store in zip("ab", stores, strict=True):
            self.join(host, store)
        self.planner = Planner(
            CountedTrials(), self.table, RequestPolicy(Eager()), direction="maximize",
            worker_id="b", clock=lambda: self.now, is_intact=lambda checkpoint: False,
        )  # fmt: skip

    def join(self, host: str, store: str) -> None:
        self.table.register(host, host, 1, [], 1, None, MachineInfo(store=store))

    def look(self) -> dict[int, tuple[str, str | None]]:
        for _ in range(3):
            self.now += 1
            self.planner.tick()
        lines = self.table.trials()
        return {line.number: (line.mode, line.worker) for line in lines if line.alive}

    def train(self, host: str) -> Grant:
        [line] = [line for line in self.table.orders(host).trials if line.worker == host]
        grant = self.table.acquire(host, line.number, self.table.free_slots(host))
        assert grant is not None
        self.table.add_checkpoint(host, grant, checkpoint(grant, 1, 0.5))
        return grant


def test_a_trial_waits_for_the_host_that_has_its_checkpoint_and_is_told_so() -> None:
    hosts = Hosts("m:/a", "n:/b")
    assert hosts.look() == {0: ("run", "a"), 1: ("run", "b")}
    grant = hosts.train("a")
    hosts.train("b")
    hosts.table.release("a", grant, "paused", ended="shutdown")
    hosts.table.leave("a")
    assert hosts.look()[0] == ("pause", None)
    [line] = [line for line in hosts.table.trials() if line.number == 0]
    assert line.reason == "waits for a, which alone has its checkpoint"
    hosts.now += 1
    hosts.join("a", "m:/a")
    assert hosts.look()[0] == ("run", "a")


def test_with_one_folder_for_all_a_trial_goes_on_elsewhere() -> None:
    hosts = Hosts("m:/shared", "m:/shared")
    hosts.look()
    grant = hosts.train("a")
    hosts.table.release("a", grant, "paused", ended="shutdown")
    hosts.table.leave("a")
    assert hosts.look()[0] == ("run", "b")


def test_the_best_model_may_be_on_another_host_unless_that_has_died() -> None:
    """It was intact when it was kept; the state of a dead host is unknown."""
    hosts = Hosts("m:/a", "n:/b")
    hosts.look()
    grant = hosts.train("a")
    table = hosts.table
    in_hand = CheckpointAvailability(table, "b", lambda checkpoint: False)
    winner = find_winner(table, "maximize", in_hand)
    assert winner is not None and winner.checkpoint is not None
    home = in_hand.remote_origin(winner.checkpoint)
    assert home is not None and home.host == "a"
    assert find_winner(table, "maximize", lambda checkpoint: False) is None
    assert (
        CheckpointAvailability(table, "a", lambda checkpoint: False).remote_origin(
            winner.checkpoint
        )
        is None
    )
    hosts.now += 100
    table.renew("b", [])
    assert table.reap() == 1
    assert find_winner(table, "maximize", in_hand) is None
    assert grant.number == 0


def test_a_study_that_has_no_slots_forgets_why_trials_waited_that_have_ended() -> None:
    table = MemoryTable(now=lambda: 0.0)
    planner = BoundPlanner(table)
    planner.wait_reasons = {1: "waits for node-a"}
    planner.update(Reading(Snapshot(0.0, 0.0, 9.0, 1, 1), {}, [], [], {}, {}, 0.0, 0))
    assert planner.reason_changes({}) == []
