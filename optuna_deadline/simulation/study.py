"""One study from its beginning to its end, in virtual time."""

from __future__ import annotations

import math

from optuna_deadline.policies.api import Policy
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.outcome import Outcome, measure
from optuna_deadline.simulation.provider import Funding, Provider
from optuna_deadline.simulation.worker import SimulatedWorker
from optuna_deadline.simulation.workload import Workload
from optuna_deadline.simulation.world import Search, World


class Simulation:
    """A study on simulated workers; everything else is what runs in production.

    Args:
        policy: Decides.
        workload: What is tuned.
        cluster: Where.
        deadline: In seconds from the beginning.
        seed: Of the faults; everything else is fixed by the other arguments.
        funding: A budget: then the hosts are nodes that are bought and given back as the policy
            says, and a head without slots plans.
        search: Chooses the configurations; by default they come in their order.
    """

    def __init__(
        self,
        policy: Policy,
        workload: Workload,
        cluster: Cluster | None = None,
        *,
        deadline: float,
        seed: int = 0,
        funding: Funding | None = None,
        search: Search | None = None,
    ) -> None:
        if not 0 < deadline < math.inf:
            raise ValueError(f"deadline must be a positive number of seconds, but got {deadline}.")
        self.world = World.make(workload, cluster or Cluster(), deadline, seed)
        self.world.search = search
        self._policy = policy
        self._begun = False
        if funding is not None:
            node = self.world.cluster.slots
            provider = Provider(self.world.timeline, funding, node, self._start)
            self.world.provider = self.world.purse = provider

    def _start(self, host: str) -> None:
        SimulatedWorker(self.world, host, 0, self._policy).start()

    def run(self) -> Outcome:
        """Run to the end of the study.

        Raises:
            RuntimeError: The study does not end: a fault of this package.
        """
        self.run_until(math.inf)
        return measure(self.world)

    def run_until(self, instant: float) -> None:
        """Run to an instant or the study's end, if that comes first; the table is written then.

        Raises:
            RuntimeError: See :meth:`run`.
        """
        world = self.world
        if not self._begun:
            self._begin()
        while world.at_work and world.timeline.now() < instant:
            if not world.timeline.advance() or world.timeline.now() > world.latest:
                raise RuntimeError(f"The study of {world.workload.name} does not end.")
        world.say_all()

    def _begin(self) -> None:
        self._begun = True
        if self.world.provider is not None:
            SimulatedWorker(self.world, "head", 0, self._policy, slots=0).start()
            return
        for host in range(self.world.cluster.hosts):
            self._start(f"host{host}")


def simulate(
    policy: Policy,
    workload: Workload,
    cluster: Cluster | None = None,
    *,
    deadline: float,
    seed: int = 0,
    funding: Funding | None = None,
    search: Search | None = None,
) -> Outcome:
    """Run one study; see :class:`Simulation` for the arguments."""
    return Simulation(
        policy,
        workload,
        cluster,
        deadline=deadline,
        seed=seed,
        funding=funding,
        search=search,
    ).run()
