"""A budget is not exceeded, whatever its policy asks for, its prices do and its hosts suffer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from optuna_deadline.budgets import Budget
from optuna_deadline.planning.bill import FAREWELL
from optuna_deadline.planning.ledger import Ledger
from optuna_deadline.planning.rates import tariff_of
from optuna_deadline.planning.repricing import tell_price
from optuna_deadline.policies import Plan, Snapshot, make_policy
from optuna_deadline.prices import Price
from optuna_deadline.simulation import Cluster, Faults, generate
from optuna_deadline.simulation.worker import SimulatedWorker
from optuna_deadline.simulation.world import World

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
        self.ledger = Ledger(world.table, tariff_of(self.budget, 0.0))
        world.purse = self.ledger
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
        while world.at_work:
            assert world.timeline.advance() and world.timeline.now() < world.latest

    def _tell(self, kind: str, price: Price) -> None:
        orders = self.world.table.orders("")
        if orders.settled or orders.now >= orders.end:
            return
        tell_price(self.world.table, self.budget, 0.0, kind, price)
        end = self.world.table.orders("").end
        self.ends.append((orders.now, end, price.per_second))

    @property
    def spent(self) -> float:
        now = self.world.timeline.now()
        self.ledger.read(now)
        return self.ledger.spent(now)


played = st.builds(
    Played,
    share=st.floats(0.01, 0.8),
    policy=st.sampled_from(["hypersched", "seer", "freeze_thaw", "asha"]),
    granularity=st.sampled_from([1.0, 20.0, 60.0]),
    minimum=st.sampled_from([0.0, 60.0]),
    node=st.sampled_from([1, 4]),
    faulty=st.booleans(),
    whim=st.none() | st.integers(0, 99),
    rises=st.lists(
        st.tuples(st.floats(0.01, 0.9), st.sampled_from(["dear", "cheap"]), st.floats(0.2, 5.0)),
        max_size=3,
    ).map(tuple),
)


@settings(max_examples=30, phases=[Phase.explicit, Phase.generate])
@given(played)
def test_the_budget_is_not_exceeded(study: Played) -> None:
    study.play()
    # Where a rise leaves too little for the way out itself, that much is owed.
    owed = sum(
        8 * price * (FAREWELL + max(study.granularity, 1.0))
        for now, end, price in study.ends
        if end <= now + FAREWELL
    )
    assert study.spent <= study.budget.amount * (1 + 1e-9) + owed


def test_most_of_the_money_is_used() -> None:
    study = Played(share=0.41)  # four cheap slots and a dear one
    study.play()
    assert 0.9 * study.budget.amount < study.spent <= study.budget.amount


def test_a_cheaper_host_is_taken_first() -> None:
    study = Played(share=0.15)
    study.play()
    [first] = [e for e in study.world.table.events(kinds=["pool"]) if e.detail["before"] == 0][:1]
    assert first.detail["types"] == {"cheap": 2} or set(first.detail["types"]) == {"cheap"}


def test_after_a_rise_the_study_ends_sooner_and_within_its_budget() -> None:
    flat, risen = Played(share=0.4), Played(share=0.4, rises=((0.3, "cheap", 5.0),))
    for study in (flat, risen):
        study.play()
        assert study.spent <= study.budget.amount
    used = [sum(s.trained or 0 for s in study.world.table.segments()) for study in (flat, risen)]
    assert used[1] < 0.8 * used[0]
