"""Histories for the tests: of simulated studies, stopped anywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import strategies as st

from optuna_deadline.history.reader import HistoryReader
from optuna_deadline.history.records import History
from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import Cluster, Faults, Funding, Simulation, generate
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.prices import Price


@dataclass(frozen=True)
class Recipe:
    """What a history is made from."""

    policy: str = "hypersched"
    family: str = "diverging"
    seed: int = 1
    slots: int = 4
    hosts: int = 1
    stopped: float = 0.5  #: of the deadline
    faulty: bool = False
    money: bool = False
    maximize: bool = True

    def make(self) -> History:
        """Simulate it."""
        tuned = generate(self.family, self.seed, configurations=16, steps=10)
        faults = Faults(crash_every=400.0, host_every=500.0) if self.faulty else Faults()
        cluster = Cluster(slots=self.slots, hosts=self.hosts, faults=faults, ttl=10, grace=5)
        deadline = 2.5 * tuned.full_seconds
        budget = Budget(deadline * self.slots * 0.7, Price(3600.0)) if self.money else None
        funding = Funding(budget.amount, startup=5.0, minimum=1.0, offer=8) if budget else None
        policy = make_policy(self.policy, {"max_resource": 10})
        simulation = Simulation(policy, tuned, cluster, deadline=deadline, funding=funding)
        world = simulation.world
        simulation.run_until(self.stopped * deadline)
        direction = "maximize" if self.maximize else "minimize"
        resources = {"min_resource": 1, "reduction_factor": 3, "max_resource": 10}
        terms = Terms(
            1, "study", direction, 0.0, deadline, deadline, self.policy, resources, 0.0,
            budget,
        )  # fmt: skip
        return HistoryReader(world.table, terms).read()


recipes = st.builds(
    Recipe,
    policy=st.sampled_from(["hypersched", "hermes", "asha", "fifo", "round_robin"]),
    family=st.sampled_from(["diverging", "climbing"]),
    seed=st.integers(1, 5),
    slots=st.sampled_from([1, 2, 4]),
    hosts=st.integers(1, 2),
    stopped=st.sampled_from([0.0, 0.003, 0.1, 0.5, 0.9, math.inf]),
    faulty=st.booleans(),
    maximize=st.booleans(),
)
paid = st.builds(
    Recipe,
    policy=st.just("seer"),
    stopped=st.sampled_from([0.003, 0.3, 0.9, math.inf]),
    money=st.just(True),
)
