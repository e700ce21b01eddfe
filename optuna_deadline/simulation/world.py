"""One simulated world: its time, its table, and what stands in for everything outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from optuna_deadline.allocation.memory import MemoryTable
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.outside import Bill, CountedTrials, Disk
from optuna_deadline.simulation.provider import Provider
from optuna_deadline.simulation.timeline import Timeline
from optuna_deadline.simulation.workload import Workload


@dataclass
class World:
    """What every simulated worker shares."""

    workload: Workload
    cluster: Cluster
    deadline: float
    seed: int
    timeline: Timeline
    table: MemoryTable
    trials: CountedTrials = field(default_factory=CountedTrials)
    disk: Disk = field(default_factory=Disk)
    bill: Bill = field(default_factory=Bill)
    at_work: set[str] = field(default_factory=set)  #: hosts whose worker has not left
    provider: Provider | None = None  #: brings the nodes, where slots cost money

    @classmethod
    def make(cls, workload: Workload, cluster: Cluster, deadline: float, seed: int) -> World:
        """A world at its beginning."""
        timeline = Timeline()
        table = MemoryTable(
            now=timeline.now, deadline=deadline, ttl=cluster.ttl, grace=cluster.grace
        )
        return cls(workload, cluster, deadline, seed, timeline, table)
