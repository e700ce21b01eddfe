"""RubberBand's problem (Misra et al., EuroSys 2021): the cheapest cluster for a given halving.

The job is fixed: the trials and the steps of each round. The size of the cluster in every round is
free. The plan starts from static clusters and removes nodes from single rounds while that is
cheaper and meets the deadline. This is our reconstruction of the greedy descent: it starts from
several static plans, and waves and gang sizes are candidates too, since it gets stuck otherwise.
Latencies are numbers, not distributions.
"""

from __future__ import annotations

from dataclasses import dataclass

from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies.api import Money
from optuna_deadline.policies.seer.round_schedule import (
    Rates,
    Schedule,
    Work,
    cheapest,
    fastest_on_pool,
    schedule,
)

_STARTS = 12


@dataclass(frozen=True)
class Job:
    """A successive halving of given shape: SHA(trials, min_resource, max_resource, factor).

    Every round trains ``reduction_factor`` times as many further steps as the one before, as in
    SHA(64, 4, 508, 2): 4 + 8 + ... + 256 = 508. The last round trains the rest.

    Attributes:
        trials: Configurations at the start.
        min_resource: Steps of the first round.
        max_resource: Steps of a whole training.
        reduction_factor: A round keeps one trial in this many.
        step_seconds: Seconds of a step on one slot.
    """

    trials: int
    min_resource: int
    max_resource: int
    reduction_factor: int
    step_seconds: float

    def works(self) -> list[Work]:
        """The rounds."""
        rounds, left, steps, alive = [], self.max_resource, self.min_resource, self.trials
        while alive > 1 and left > steps:
            rounds.append(Work(alive, steps * self.step_seconds))
            left, steps = left - steps, steps * self.reduction_factor
            alive = max(1, alive // self.reduction_factor)
        return [*rounds, Work(alive, left * self.step_seconds)]


def rates_for(money: Money, speedup: Speedup, overhead: float = 0.0) -> Rates:
    """The rates of gangs of 1, 2, 4, ... slots, up to the largest measured S(k)."""
    largest = max(speedup.measured, default=1)
    sizes = [2**power for power in range(largest.bit_length()) if 2**power <= money.offer]
    return Rates(money, tuple((size, speedup(size)) for size in sizes), overhead)


def static_plans(job: Job, rates: Rates) -> list[Schedule]:
    """The job on static clusters of every size."""
    works = job.works()
    most = rates.money.offer // rates.money.node
    return [
        schedule([fastest_on_pool(work, rates, nodes) for work in works], rates)
        for nodes in range(1, most + 1)
    ]


def fastest_seconds(job: Job, rates: Rates) -> float:
    """The minimum seconds of the job at any cost."""
    return min(plan.seconds for plan in static_plans(job, rates))


def plan_static(job: Job, rates: Rates, time: float) -> Schedule | None:
    """The cheapest static cluster that ends the job in time; None if there is none."""
    plans = [plan for plan in static_plans(job, rates) if plan.seconds <= time]
    return min(plans, key=lambda plan: plan.cost, default=None)


def plan_elastic(job: Job, rates: Rates, time: float) -> Schedule | None:
    """The cheapest cluster whose size may change in each round; None if there is none."""
    plans = [plan for plan in static_plans(job, rates) if plan.seconds <= time]
    plans.sort(key=lambda plan: plan.cost)
    starts = [plan.rounds for plan in plans[:: max(1, len(plans) // _STARTS)]]
    found = cheapest(job.works(), rates, time, starts)
    return min([*plans[:1], *([found] if found else [])], key=lambda plan: plan.cost, default=None)
