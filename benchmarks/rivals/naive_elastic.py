"""A naive elastic pool: successive halving on as many slots as its trials can use.

SEER's abstract names naive extensions of fixed-cluster methods to the cloud. Our reconstruction:
the inner policy plans as if it had all slots on offer, and the study buys as many as the plan
uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optuna_deadline.policies.api import Order, Pause, Plan, Policy, Snapshot
from optuna_deadline.policies.base import Resources
from optuna_deadline.policies.baselines.halving import SuccessiveHalving


@dataclass(frozen=True)
class NaiveElastic(Resources):
    """Buys as many slots as successive halving can use.

    Args:
        cohort: Trials in a cohort; None: reduction_factor to the power of the number of rungs.
        inner: Another policy to follow.
    """

    cohort: int | None = None
    inner: Policy | None = None

    def plan(self, snapshot: Snapshot) -> Plan:
        """The inner policy's plan, and the pool that it could use."""
        money = snapshot.money
        inner = self.inner or SuccessiveHalving(
            self.min_resource, self.max_resource, self.reduction_factor, self.cohort
        )
        if money is None:
            return inner.plan(snapshot)
        if money.left <= 0:
            stopped: dict[int, Order] = {
                trial.number: Pause("the budget is spent")
                for trial in snapshot.trials
                if trial.alive
            }
            return Plan(stopped, gate_open=False, pool_slots=0)
        could = inner.plan(replace(snapshot, capacity=money.offer)).slots
        pool = min(money.nodes(could) * money.node, money.affordable)
        plan = inner.plan(replace(snapshot, capacity=min(snapshot.capacity, pool)))
        return replace(plan, pool_slots=pool, holds_until=None)
