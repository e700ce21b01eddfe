"""The bound of regret: a policy that knows the curves and trains the best one from the start."""

from __future__ import annotations

import math
from dataclasses import dataclass

from optuna_deadline.forecasting.throughput import closing_seconds
from optuna_deadline.policies.api import Plan, Run, Snapshot
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.workload import Workload


@dataclass(frozen=True)
class Oracle:
    """Starts one trial on the number of slots with which its configuration gets furthest.

    Args:
        slots: The number of slots.
    """

    slots: int = 1

    def plan(self, snapshot: Snapshot) -> Plan:
        """Train the one trial."""
        if not snapshot.trials:
            return Plan(start=1, start_reason="the best of all that could be tried")
        slots = min(self.slots, snapshot.largest_gang)
        orders = {t.number: Run(slots, "the best of all") for t in snapshot.trials if t.alive}
        return Plan(orders, gate_open=False)


def foresee(workload: Workload, cluster: Cluster, deadline: float) -> tuple[Oracle, Workload]:
    """The oracle of a workload, and the workload with the oracle's configuration first.

    Its result bounds that of any policy on this cluster by the deadline, except for the seconds in
    which its trial moves from its first slot to its gang.

    Args:
        workload: The workload.
        cluster: The cluster.
        deadline: The deadline in seconds from the start.
    """
    slots = max(range(1, cluster.slots + 1), key=cluster.speedup)
    training = max(0.0, deadline - cluster.startup - closing_seconds(cluster.stop))
    reach = []
    seconds = training * cluster.speedup(slots)
    for number, curve in enumerate(workload.curves):
        clock = workload.clock(number)
        steps = int(clock.reached(seconds) if clock else seconds / workload.step_seconds[number])
        scores = [score for score in curve[:steps] if not math.isnan(score)]
        reach.append(max(scores, default=-math.inf))
    order = sorted(range(len(reach)), key=lambda index: (-reach[index], index))
    return Oracle(slots), workload.arranged(order)
