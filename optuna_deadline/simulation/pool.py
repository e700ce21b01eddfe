"""Simulates the studies of one pool: they arrive, share its slots, and leave.

The leader, the planners, the policies and the table are production code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from optuna_deadline.planning.pool_leader import PoolLeader
from optuna_deadline.policies.api import Policy
from optuna_deadline.simulation.clock import Timeline
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.environment import World
from optuna_deadline.simulation.study import Outcome, measure
from optuna_deadline.simulation.worker import SimulatedWorker
from optuna_deadline.simulation.workload import Workload

#: A study without a deadline has this one, in seconds from its arrival.
UNDATED = 1e7


@dataclass(frozen=True)
class PoolStudy:
    """A study of a simulated pool.

    Attributes:
        workload: Its configurations.
        policy: Makes its policy.
        arrival: When it joins, in seconds.
        deadline: When it ends at the latest; infinite for no deadline.
        weight: Its weight in the pool.
    """

    workload: Workload
    policy: Callable[[], Policy]
    arrival: float = 0.0
    deadline: float = math.inf
    weight: float = 1.0


@dataclass(frozen=True)
class PoolOutcome:
    """What became of a pool.

    Attributes:
        studies: The figures of each study; times are the pool's.
        complete: For each study, its trials that were trained to their ends.
        served: For each study, the slot-seconds that were lent to it.
        handovers: Slots that were lent to another study.
    """

    studies: tuple[Outcome, ...]
    complete: tuple[int, ...]
    served: tuple[float, ...]
    handovers: int


class PoolSimulation:
    """Studies on the hosts of one cluster; each has a worker on each host.

    Args:
        studies: By their arrival.
        divider: The name of the divider.
        cluster: The hosts.
        interval: Seconds between two looks of the leader.
        seed: The seed of the faults.
    """

    def __init__(
        self,
        studies: Sequence[PoolStudy],
        divider: str,
        cluster: Cluster | None = None,
        *,
        interval: float = 10.0,
        seed: int = 0,
    ) -> None:
        self._studies = studies
        self._divider = divider
        self._cluster = cluster or Cluster()
        self._interval = interval
        self._seed = seed
        self._worlds: list[World] = []
        self._leaders: dict[str, PoolLeader] = {}
        self._served: dict[int, float] = {}
        self._timeline = Timeline()
        self._latest = max(study.arrival for study in studies)  # all have ended by then

    def run(self) -> PoolOutcome:
        """Run until all studies have ended.

        Raises:
            RuntimeError: They do not end, which is a defect of this package.
        """
        for number, study in enumerate(self._studies, start=1):
            self._timeline.at(study.arrival, partial(self._arrive, study, number))
        self._timeline.at(0.0, self._lead)
        while len(self._worlds) < len(self._studies) or any(w.working_hosts for w in self._worlds):
            if not self._timeline.advance() or self._timeline.now() > self._latest:
                raise RuntimeError("The studies of the pool do not end.")
        for world in self._worlds:
            world.write_all_progress()
        lent = self._worlds[0].table.pool_events(kinds=("lend",))
        return PoolOutcome(
            tuple(map(measure, self._worlds)),
            tuple(
                sum(row.state == "complete" for row in world.table.trials())
                for world in self._worlds
            ),
            tuple(self._served[world.table.study_id] for world in self._worlds),
            len(lent),
        )

    def _arrive(self, study: PoolStudy, number: int) -> None:
        now = self._timeline.now()
        world = World.make(
            study.workload, self._cluster, min(study.deadline, now + UNDATED), self._seed,
            timeline=self._timeline, study_id=number,
            beside=self._worlds[0] if self._worlds else None,
        )  # fmt: skip
        world.weight = study.weight
        self._worlds.append(world)
        self._latest = max(self._latest, world.latest)
        policy = study.policy()
        for host in range(self._cluster.hosts):
            SimulatedWorker(world, f"host{host}", 0, policy).start()

    def _lead(self) -> None:
        """Divide as the worker that is elected; a worker that has left is followed by another."""
        self._timeline.after(self._interval, self._lead)
        for world in self._worlds:
            for name in world.workers:
                leader = self._leaders.get(name)
                if leader is None:
                    leader = PoolLeader(world.table, self._divider, name, self._timeline.now)
                    self._leaders[name] = leader
                if leader.tick():
                    self._wake_all()
                self._served |= {row.study_id: row.served for row in world.table.tenants()}
                return

    def _wake_all(self) -> None:
        for world in self._worlds:
            for worker in list(world.workers.values()):
                worker.wake_all()
