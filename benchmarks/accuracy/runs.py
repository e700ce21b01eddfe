"""One study: a policy on a table's curves, with a number of slots, a deadline and an overhead.

Units are relative, so that tables can be compared: time in whole trainings on one slot, overhead
in steps, and regret from 0 at the best configuration to 1 at the median one.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from benchmarks.accuracy.oracle import foresee
from benchmarks.accuracy.peers import PEERS, OptunaPruner
from benchmarks.accuracy.search import SAMPLERS, TableSearch
from benchmarks.rivals import make_policy
from benchmarks.syne_tune.asking import SYNE_TUNE, running
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import Policy
from optuna_deadline.simulation import Cluster, Simulation
from optuna_deadline.simulation.environment import World
from optuna_deadline.simulation.tables import choose, draw
from optuna_deadline.simulation.workload import Workload

#: Our policies by their names here; the policy that ends no trial is random search.
POLICIES = {
    "adaptive_halving": "adaptive_halving",
    "hypersched": "hypersched",
    "seer": "seer",
    "hermes": "hermes",
    "asha_promote": "asha_promote",
    "pruner": "pruner",
    "asha": "asha",
    "hyperband": "hyperband",
    "successive_halving": "successive_halving",
    "median": "median",
    "one_epoch": "one_epoch",
    "slaq": "slaq",
    "random": "fifo",
}
ORACLE = "oracle"
#: Policies with a sampler that chooses the configurations by their hyper-parameters.
SEARCHES = tuple(f"{policy}+{sampler}" for policy in (*POLICIES, *PEERS) for sampler in SAMPLERS)

#: Virtual seconds of a table's average step; the planner runs about every second.
STEP_SECONDS = 60.0
_STOP = 1.0  #: seconds of a segment's stop; its start takes the rest of the overhead


@dataclass(frozen=True)
class Setting:
    """A pool and a deadline.

    Attributes:
        slots: The slots of one host.
        trainings: Whole trainings that fit into the time of all slots together.
        overhead: The overhead of each start and resize, in steps.
    """

    slots: int
    trainings: int
    overhead: float


@dataclass(frozen=True)
class Case:
    """One study; a table and a seed give the same curves in the same order under every policy.

    Policies know the number of configurations, as in a study with ``n_trials``, and open no more
    trials.

    ``policy`` may also name a sampler, as in ``"median+deadline"``; then the sampler chooses the
    configurations. ``syne_tune`` is the Python interpreter for the peers of Syne Tune.
    """

    policy: str
    table: str
    seed: int
    setting: Setting
    data: Path | None
    syne_tune: str | None = None

    def run(self) -> float:
        """The regret of the best model at the deadline; see :func:`regret`."""
        if self.policy in SYNE_TUNE:
            workload = self._workload()
            return regret(workload, self._asked(workload, *self._means(workload)))
        simulation = self.simulation()
        return regret(simulation.world.workload, simulation.run().value)

    def simulation(self) -> Simulation:
        """The study before its start."""
        workload = self._workload()
        cluster, deadline = self._means(workload)
        name, _, sampler = self.policy.partition("+")
        policy: Policy
        if name == ORACLE:
            policy, workload = foresee(workload, cluster, deadline)
        elif name in PEERS:
            policy = OptunaPruner(PEERS[name](workload.steps), self.seed, len(workload.curves))
        else:
            resources = {"max_resource": workload.steps, "n_trials": len(workload.curves)}
            policy = make_policy(POLICIES[name], resources)
        search = None
        if sampler:
            earlier = self._earlier(name) if sampler == "earlier" else []
            search = TableSearch(workload, sampler, self.seed, earlier)
        return Simulation(
            policy, workload, cluster, deadline=deadline, seed=self.seed, search=search
        )

    def _workload(self) -> Workload:
        return scaled(draw(self.table, self.seed, steps=81, data=self.data))

    def _means(self, workload: Workload) -> tuple[Cluster, float]:
        """The pool, and the deadline in seconds."""
        seconds = self.setting.overhead * STEP_SECONDS
        cluster = Cluster(slots=self.setting.slots, startup=max(0.0, seconds - _STOP), stop=_STOP)
        return cluster, self.setting.trainings * workload.full_seconds / self.setting.slots

    def _earlier(self, policy: str) -> list[World]:
        """Studies on the kind's other tables, with the same policy and setting."""
        kind = self.table.partition("/")[0]
        others = [name for name in choose([kind], self.data)[kind] if name != self.table]
        if not others:
            raise DeadlineError(
                f"{self.table} is alone of its kind: there is no table for an earlier study."
            )
        return [played(replace(self, policy=policy, table=other)) for other in others]

    def _asked(self, workload: Workload, cluster: Cluster, deadline: float) -> float | None:
        if self.syne_tune is None:
            raise DeadlineError(
                f"{self.policy} runs in an environment of Syne Tune's own: name its Python with "
                "--syne-tune-python (benchmarks/README.md says how to make one)."
            )
        theirs = running(self.syne_tune)
        return theirs.value(self.policy, workload, cluster, deadline, self.seed)


@cache
def played(case: Case) -> World:
    """A simulated study; one that several later studies use is simulated once."""
    simulation = case.simulation()
    simulation.run()
    return simulation.world


def regret(workload: Workload, value: float | None) -> float:
    """0 for the best configuration's value, 1 for the median one's, a worse one or no model."""
    if value is None:
        return 1.0
    peaks = [workload.peak(number) for number in range(len(workload.curves))]
    median = statistics.median(peaks)
    return min(1.0, (workload.best - value) / max(workload.best - median, 1e-12))


def scaled(workload: Workload) -> Workload:
    """The table with steps of :data:`STEP_SECONDS` on average."""
    return workload.slowed(STEP_SECONDS / statistics.fmean(workload.step_seconds))
