"""The simulated hosts: slots, the cost of changes, the true S(k), faults, and bought nodes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.table import GRACE, TTL
from optuna_deadline.errors import check_counts
from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.planning.billing.invoice import Invoice
from optuna_deadline.planning.billing.price_schedule import Rate, Tariff
from optuna_deadline.policies.api import Money
from optuna_deadline.simulation.clock import Timeline, Timer

#: k slots are k times as fast
LINEAR = Speedup({1024: 1024.0})

#: Measured by HyperSched's authors: ResNet-50 on CIFAR-10, V100 GPUs of one machine.
SUBLINEAR = Speedup({2: 1.870, 4: 3.421, 8: 5.598})

#: a model that is slower on more slots
ANTI = Speedup({2: 0.9, 4: 0.7, 8: 0.5, 1024: 0.1})


def _check(low: float, high: float = math.inf, **given: float) -> None:
    """Refuse a number that is not within two, both included."""
    for name, value in given.items():
        if not (isinstance(value, (int, float)) and low <= value <= high):
            limit = f"from {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
            raise ValueError(f"{name} must be a number {limit}, but got {value!r}.")


@dataclass(frozen=True)
class Faults:
    """Kinds and rates of faults; drawn by seed, trial and segment, independent of the policy.

    Attributes:
        crash_every: Mean seconds that a slot trains until its rank dies.
        host_every: Mean seconds until a whole host dies.
        reboot: Seconds until its worker is back.
        straggler_share: The share of segments that are slow.
        straggler_factor: By which factor their steps are longer.
    """

    crash_every: float = math.inf
    host_every: float = math.inf
    reboot: float = 60.0
    straggler_share: float = 0.0
    straggler_factor: float = 2.0

    def __post_init__(self) -> None:
        _check(0, crash_every=self.crash_every, host_every=self.host_every, reboot=self.reboot)
        _check(0, 1, straggler_share=self.straggler_share)
        _check(1, straggler_factor=self.straggler_factor)

    def crash_after(self, seed: int, number: int, fence: int, slots: int) -> float:
        """Seconds that a segment trains until a rank dies."""
        if math.isinf(self.crash_every):
            return math.inf
        draw = random.Random(f"crash {seed} {number} {fence}")
        return draw.expovariate(slots / self.crash_every)

    def slowness(self, seed: int, number: int, fence: int) -> float:
        """The factor by which a segment's steps are slower."""
        if self.straggler_share <= 0:
            return 1.0
        draw = random.Random(f"straggler {seed} {number} {fence}")
        return self.straggler_factor if draw.random() < self.straggler_share else 1.0

    def host_dies_after(self, seed: int, host: str, incarnation: int) -> float:
        """Seconds from a worker's start until its host dies."""
        if math.isinf(self.host_every):
            return math.inf
        draw = random.Random(f"host {seed} {host} {incarnation}")
        return draw.expovariate(1.0 / self.host_every)


@dataclass(frozen=True)
class Cluster:
    """Hosts with slots, and the seconds of everything except training.

    Attributes:
        slots: Slots of each host; a gang stays on one host, unless ``across`` is given.
        hosts: Number of hosts.
        startup: From the grant of slots to the first step.
        stop: From the order to leave to the release, the checkpoint included.
        poll: Between two polls of the plan by a worker.
        reading: From a report to the plan that includes it; reports in between share that plan.
        save_every: Between two safety checkpoints; a new best score is always saved.
        speedup: The true S(k).
        across: The share of its speed that a gang has over several hosts; None for no such gangs.
        faults: Faults to inject.
        ttl: Life of a lease without renewal, in seconds.
        grace: Seconds until a dead lease is reaped.
    """

    slots: int = 8
    hosts: int = 1
    startup: float = 5.0
    stop: float = 1.0
    poll: float = 1.0
    reading: float = 0.2
    save_every: float = 60.0
    speedup: Speedup = SUBLINEAR
    across: float | None = None
    faults: Faults = field(default_factory=Faults)
    ttl: float = TTL
    grace: float = GRACE

    def __post_init__(self) -> None:
        check_counts(slots=self.slots, hosts=self.hosts)
        _check(0, startup=self.startup, stop=self.stop, poll=self.poll, reading=self.reading)
        _check(0, save_every=self.save_every, ttl=self.ttl, grace=self.grace)
        if self.across is not None:
            _check(0, 1, across=self.across)

    def speed(self, grant: Grant) -> float:
        """The speed of a gang relative to one slot."""
        share = 1.0 if self.across is None or not grant.others else self.across
        return share * self.speedup(grant.size)

    @property
    def capacity(self) -> int:
        """All slots."""
        return self.slots * self.hosts


@dataclass(frozen=True)
class Funding:
    """The budget and the prices of a simulated study.

    Attributes:
        budget: The amount that may be spent.
        price: Price of one slot for one second.
        startup: Billed seconds from the request of a node until its worker has joined.
        granularity: Seconds of a billing unit.
        minimum: Minimum number of billed seconds of a node.
        offer: Maximum number of slots.
    """

    budget: float
    price: float = 1.0
    startup: float = 60.0
    granularity: float = 1.0
    minimum: float = 60.0
    offer: int = 256

    def __post_init__(self) -> None:
        check_counts(offer=self.offer)
        _check(0, budget=self.budget, price=self.price, startup=self.startup)
        _check(0, granularity=self.granularity, minimum=self.minimum)


class Provider:
    """Brings and takes nodes, and is the budget account of the study's planner.

    Args:
        timeline: Virtual time.
        funding: Budget and terms.
        node: Slots of a node.
        start: Starts the worker of a node's host.
    """

    def __init__(
        self, timeline: Timeline, funding: Funding, node: int, start: Callable[[str], None]
    ) -> None:
        self._timeline = timeline
        self._funding = funding
        self._start = start
        rate = Rate(
            ((0.0, funding.price),), funding.granularity, funding.startup, funding.minimum, node
        )
        self._rate = rate
        self._bill = Invoice(Tariff(funding.budget, {"": rate}))
        self._bill.since[""] = []
        self._since: dict[str, float] = {}
        self._coming: dict[str, Timer] = {}
        self._wanted = 0
        self._asked = 0

    # The budget account.

    def read(self, now: float) -> None:
        """Do nothing: the provider always knows the present."""

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        """The money now; slots that workers offer do not limit how many can be bought."""
        return self._bill.money(now, {}, self._funding.offer)

    def affordable(self, now: float, slots: Mapping[str, int]) -> dict[str, int]:
        """The number of these slots that the budget can buy now."""
        return self._bill.affordable(now, slots)

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        """Until when the budget pays for some slots and for the nodes that are still held."""
        return self._bill.lasts_until(now, slots, latest)

    @property
    def wanted(self) -> Mapping[str, int]:
        """The slots of the requested nodes."""
        return {"": self._wanted * self._rate.node}

    def host_type(self, worker: str | None = None) -> str:
        """All nodes are of one type."""
        return ""

    def price(self, kind: str, now: float) -> float:
        """The price of one slot for one second."""
        return self._funding.price

    @property
    def slot_seconds(self) -> float:
        """Slot-seconds paid for so far, in seconds of holding."""
        now = self._timeline.now()
        held = sum(now - since for since in self._since.values())
        return (self._bill.node_seconds + held) * self._rate.node

    @property
    def budget(self) -> float:
        """The amount that may be spent."""
        return self._funding.budget

    @property
    def spent(self) -> float:
        """The amount spent so far."""
        return self._bill.spent(self._timeline.now())

    # Nodes.

    def request(self, slots: int) -> None:
        """Request nodes, or cancel those that have not started yet."""
        self._wanted = -(-slots // self._rate.node)
        for host in reversed(list(self._coming)):
            if len(self._since) > self._wanted:
                self._coming.pop(host).cancel()
                self._end(host)
        while len(self._since) < self._wanted:
            self._asked += 1
            host, now = f"node{self._asked}", self._timeline.now()
            self._since[host] = now
            self._bill.since[""].append(now)
            self._coming[host] = self._timeline.after(
                self._funding.startup, partial(self._arrive, host)
            )

    def may_give_back(self, host: str) -> bool:
        """Whether an idle node may be returned."""
        return host in self._since and len(self._since) > self._wanted

    def give_back(self, host: str) -> None:
        """Return a node whose worker has left."""
        if host in self._since:
            self._end(host)

    def _arrive(self, host: str) -> None:
        del self._coming[host]
        self._start(host)

    def _end(self, host: str) -> None:
        self._bill.give_back(self._since.pop(host), self._timeline.now())
