"""The machines, as values: slots, what a change of slots costs, true S(k), what goes wrong."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.store import GRACE, TTL
from optuna_deadline.forecasting.throughput import Speedup

#: k slots are k times as fast.
LINEAR = Speedup({1024: 1024.0})

#: Measured by HyperSched's authors: ResNet-50 on CIFAR-10, V100 GPUs of one machine.
SUBLINEAR = Speedup({2: 1.870, 4: 3.421, 8: 5.598})

#: A model that more slots make slower.
ANTI = Speedup({2: 0.9, 4: 0.7, 8: 0.5, 1024: 0.1})


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and how often; drawn by seed, trial and segment, not by the policy.

    Attributes:
        crash_every: Mean seconds that a slot trains until its rank dies.
        host_every: Mean seconds until a whole host dies.
        reboot: Seconds until its worker is there again.
        straggler_share: The share of segments that are slow.
        straggler_factor: How many times as long their steps take.
    """

    crash_every: float = math.inf
    host_every: float = math.inf
    reboot: float = 60.0
    straggler_share: float = 0.0
    straggler_factor: float = 2.0

    def crash_after(self, seed: int, number: int, fence: int, slots: int) -> float:
        """Seconds that a segment trains until a rank dies."""
        if math.isinf(self.crash_every):
            return math.inf
        draw = random.Random(f"crash {seed} {number} {fence}")
        return draw.expovariate(slots / self.crash_every)

    def slowness(self, seed: int, number: int, fence: int) -> float:
        """How many times as long a segment's steps take."""
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
    """Hosts with slots, and the seconds that everything but training takes there.

    Attributes:
        slots: Slots of each host; a gang stays on one host, unless ``across`` is given.
        hosts: How many there are.
        startup: From the grant of slots to the first step.
        stop: From the order to leave to the release, the checkpoint included.
        poll: Between two looks of a worker at the plan.
        reading: From a report to the plan that has seen it; reports meanwhile share that plan.
        save_every: Between two safety checkpoints; a new best score is always saved.
        speedup: The true S(k).
        across: The share of its speed that a gang has over several hosts; None for no such gangs.
        faults: What goes wrong.
        ttl: Seconds that a lease lives.
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

    def speed(self, grant: Grant) -> float:
        """How many times as fast as on one slot a gang trains."""
        share = 1.0 if self.across is None or not grant.others else self.across
        return share * self.speedup(grant.size)

    @property
    def capacity(self) -> int:
        """All slots."""
        return self.slots * self.hosts
