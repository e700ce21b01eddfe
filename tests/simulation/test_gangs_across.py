"""Gangs over several simulated hosts: taken whole, ended as a whole, and used where they pay."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from allocation.suite.world import assert_legal

from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import Simulation, generate
from optuna_deadline.simulation.cluster import LINEAR, Cluster, Faults
from optuna_deadline.simulation.study import events

#: Training is long for the time there is: the survivors want all slots.
HOSTS = Cluster(slots=1, hosts=4, speedup=LINEAR, startup=2.0, across=0.9)


def study(cluster: Cluster, seed: int = 0) -> Simulation:
    tuned = generate("power-law", seed, configurations=64, steps=200)
    policy = make_policy("hypersched", {"max_resource": 200})
    return Simulation(policy, tuned, cluster, deadline=0.4 * tuned.full_seconds, seed=seed)


def crossing(simulation: Simulation) -> int:
    return sum(row.workers > 1 for row in simulation.world.table.segments())


def test_gangs_cross_hosts_that_let_them() -> None:
    simulation = study(HOSTS)
    simulation.run()
    assert crossing(simulation) > 0
    assert_legal(events(simulation.world))
    assert all(slot.holder is None for slot in simulation.world.table.slots())
    apart = study(replace(HOSTS, across=None))
    apart.run()
    assert crossing(apart) == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_dies_ends_its_gangs_and_nobody_holds_a_part(seed: int) -> None:
    faults = Faults(host_every=400.0, reboot=10.0)
    simulation = study(replace(HOSTS, faults=faults, ttl=10.0, grace=5.0), seed)
    outcome = simulation.run()
    log = events(simulation.world)
    assert any(event.kind == "reap" for event in log)
    assert_legal(log)
    assert outcome.value is not None


@pytest.mark.slow
def test_what_was_measured_decides_whether_hosts_are_crossed() -> None:
    """Where it is fast the trials get further than apart; where it is slow it is soon left."""

    def furthest(across: float | None, seed: int) -> int:
        simulation = study(replace(HOSTS, across=across), seed)
        simulation.run()
        return max(row.step for row in simulation.world.table.reports())

    seeds = range(5)
    fast, slow, apart = (
        mean(furthest(across, seed) for seed in seeds) for across in (0.9, 0.25, None)
    )
    assert fast > 1.5 * apart
    assert slow > 0.85 * apart
