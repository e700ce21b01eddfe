"""Simulated studies that pay for hosts of two types, at prices that change."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from optuna_deadline.history.reader import HistoryReader
from optuna_deadline.history.records import History
from optuna_deadline.planning.billing.budget import change_price
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.policies import Plan, Snapshot, make_policy
from optuna_deadline.simulation import Cluster, Faults, generate
from optuna_deadline.simulation.environment import World
from optuna_deadline.simulation.worker import SimulatedWorker
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.prices import Price

FULL = 600.0  #: seconds until the deadline


class Whim:
    """HyperSched on a pool of ever another size."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inner = make_policy("hypersched", {"max_resource": 10})

    def plan(self, snapshot: Snapshot) -> Plan:
        plan = self._inner.plan(snapshot)
        draw = random.Random(f"{self._seed} {snapshot.now // 40}")
        return replace(plan, pool_slots=draw.choice([0, 1, 3, 8, 50]))


@dataclass
class Played:
    """A simulated study with a budget, hosts of two types and prices that are told."""

    share: float = 0.3  #: of what all slots cost at first
    policy: str = "hypersched"
    granularity: float = 1.0
    minimum: float = 0.0
    node: int = 1
    faulty: bool = False
    whim: int | None = None
    rises: tuple[tuple[float, str, float], ...] = ()  #: share of the time, type, factor
    drained: float | None = None  #: share of the time at which the cheap host is
    stopped: float = math.inf  #: share of the time after which nothing more is played
    ends: list[tuple[float, float, float]] = field(default_factory=list)

    def play(self) -> None:
        faults = Faults(crash_every=300.0, host_every=250.0, reboot=30.0)
        cluster = Cluster(
            slots=4, startup=3.0, stop=1.0, ttl=10, grace=5,
            faults=faults if self.faulty else Faults(),
        )  # fmt: skip
        tuned = generate("climbing", 1, configurations=16, steps=10)
        self.world = world = World.make(tuned, cluster, FULL, 1)
        price = Price(3600.0, self.granularity, minimum=self.minimum, node=self.node)
        prices = {"dear": replace(price, per_hour=4 * 3600.0), "cheap": price}
        unit = max(self.granularity, self.minimum, 5.0) * self.node
        self.budget = Budget(max(unit, 4 * 5 * FULL * self.share), prices)
        self.ledger = BillingLedger(world.table, tariff_of(self.budget, 0.0))
        world.budget_account = self.ledger
        world.host_types.update(one="dear", two="cheap")
        policy = (
            make_policy(self.policy, {"max_resource": 10})
            if self.whim is None
            else Whim(self.whim)
        )
        for host in ("one", "two"):
            SimulatedWorker(world, host, 0, policy).start()
        for when, kind, factor in self.rises:
            told = Price(prices[kind].per_hour * factor)
            world.timeline.at(when * FULL, lambda kind=kind, told=told: self._tell(kind, told))
        if self.drained is not None:
            world.timeline.at(self.drained * FULL, lambda: bool(world.table.drain("two", True)))
        while world.working_hosts and world.timeline.now() < self.stopped * FULL:
            assert world.timeline.advance() and world.timeline.now() < world.latest

    def _tell(self, kind: str, price: Price) -> None:
        orders = self.world.table.orders("")
        if orders.settled or orders.now >= orders.end:
            return
        change_price(self.world.table, self.budget, 0.0, kind, price)
        end = self.world.table.orders("").end
        self.ends.append((orders.now, end, price.per_second))

    @property
    def spent(self) -> float:
        now = self.world.timeline.now()
        self.ledger.read(now)
        return self.ledger.spent(now)

    @property
    def history(self) -> History:
        """What there is to tell of it."""
        self.world.write_all_progress()
        resources = {"min_resource": 1, "reduction_factor": 3, "max_resource": 10}
        terms = Terms(
            1, "study", "maximize", 0.0, FULL, FULL, self.policy, resources, 0.0, self.budget
        )
        return HistoryReader(self.world.table, terms).read()
