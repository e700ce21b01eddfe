"""Gangs of sizes that divide their trial's batch, for policies that know of no batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from optuna_deadline.forecasting.throughput import WORTHWHILE, Speedup
from optuna_deadline.policies.api import Order, Plan, Policy, Run
from optuna_deadline.policies.snapshot import Snapshot, TrialView


@dataclass(frozen=True)
class Fitting:
    """A policy whose gangs divide the batches of trials that ask for it.

    The policy is shown no size as useful that fits none of the trials, and of what it orders a
    trial gets the largest size that fits. A slot that nobody can use stays idle.

    Args:
        policy: Decides.
    """

    policy: Policy

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan, in sizes that fit."""
        batches = {t.number: t.batch for t in snapshot.trials if t.alive and t.batch is not None}
        if not batches:
            return self.policy.plan(snapshot)
        plan = self.policy.plan(_shown(snapshot))
        orders = {
            number: _fitted(order, batches.get(number)) for number, order in plan.orders.items()
        }
        fitted = replace(plan, orders=orders)
        idle = snapshot.capacity - fitted.slots
        if idle > 0:
            fitted = replace(
                fitted,
                orders={
                    number: _explained(order, batches.get(number), snapshot.largest_gang)
                    for number, order in orders.items()
                },
            )
        return fitted


def fitting(slots: int, batch: int | None) -> int:
    """The largest size up to ``slots`` that divides a batch; any size where there is none."""
    if batch is None:
        return slots
    return next((size for size in range(slots, 1, -1) if batch % size == 0), min(slots, 1))


def says(slots: int, batch: int) -> str:
    """Why a trial does not have so many slots."""
    return f"{slots} slots do not divide its batch of {batch}"


@dataclass(frozen=True)
class _Sizes(Speedup):
    """S(k), of which only some sizes are of use."""

    batches: frozenset[int] = field(default_factory=frozenset)

    def useful(self, limit: int) -> list[int]:
        sizes = [1]
        for slots in range(2, limit + 1):
            fits = any(batch % slots == 0 for batch in self.batches)
            if fits and self(slots) >= WORTHWHILE * self(sizes[-1]):
                sizes.append(slots)
        return sizes


def _shown(snapshot: Snapshot) -> Snapshot:
    alive = [trial for trial in snapshot.trials if trial.alive]
    if any(_takes_any(trial) for trial in alive):
        return snapshot
    batches = frozenset(trial.batch for trial in alive if trial.batch is not None)
    known = vars(snapshot.speedup)
    shown = _Sizes(
        **{name: known[name] for name in snapshot.speedup.__match_args__}, batches=batches
    )
    return replace(snapshot, speedup=shown)


def _takes_any(trial: TrialView) -> bool:
    """Whether uneven slices are all right; who has only begun has not said it yet."""
    return trial.batch is None and bool(trial.reports)


def _fitted(order: Order, batch: int | None) -> Order:
    if not isinstance(order, Run) or batch is None:
        return order
    size = fitting(order.slots, batch)
    if size == order.slots:
        return order
    return Run(size, f"{size} of {order.slots}: {says(order.slots, batch)}")


def _explained(order: Order, batch: int | None, largest: int) -> Order:
    """Slots are idle; this trial would be the one to ask why."""
    if not isinstance(order, Run) or batch is None or order.slots >= largest:
        return order
    more = order.slots + 1
    if batch % more == 0 or "do not divide" in order.reason:
        return order
    return Run(order.slots, f"{order.reason}; {says(more, batch)}")
