"""First in, first out, which is random search; and a naive elastic pool.

SEER's abstract names naive extensions of fixed-cluster methods to the cloud. Our reconstruction:
the inner policy plans as if it had all slots on offer, and the study buys as many as the plan
uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from optuna_deadline.policies.api import Order, Pause, Plan, Policy, Snapshot
from optuna_deadline.policies.base import (
    Resources,
    SlotCandidate,
    alive,
    one_slot_each,
    running_first,
)
from optuna_deadline.policies.baselines.halving import SuccessiveHalving


@dataclass(frozen=True)
class Fifo(Resources):
    """One slot per trial, in the order of their numbers, without rungs."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Continue all trials, and start new ones on free slots."""
        claims = [SlotCandidate(trial, "its turn") for trial in running_first(alive(snapshot))]
        newcomers, end = self.trials_left_to_open(snapshot), snapshot.deadline
        return one_slot_each(snapshot, claims, newcomers=newcomers, holds_until=end)


@dataclass(frozen=True)
class NaiveElastic(Resources):
    """Synchronous successive halving on as many slots as its trials can use.

    Args:
        cohort: Trials of a cohort; None for so many that one reaches the last rung.
        inner: Another policy to follow.
    """

    cohort: int | None = None
    inner: Policy | None = field(default=None)

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
