"""Wrappers that make every policy follow requests of users and limits of trials.

The policy sees the study with held and pinned trials as ended ones, whose reports still count,
and with the slots that pinned gangs leave. Then its plan is completed with the requests. A trial
that cannot use as many slots as the policy assigns is treated as pinned to its maximum, so that
other trials get the rest. Gangs get sizes that divide their trial's batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from optuna_deadline.forecasting.throughput import WORTHWHILE, Speedup
from optuna_deadline.policies.api import (
    Money,
    Order,
    Pause,
    Plan,
    Policy,
    Request,
    Run,
    Snapshot,
    TrialView,
)

_HELD = "held by request, until it is resumed"
_NO_ROOM = "waits: all slots are pinned to other trials"


@dataclass(frozen=True)
class RequestPolicy:
    """Applies users' requests to a policy.

    A held trial has no slots. A pinned one trains on its pinned number, or waits while so many are
    not free at once: it never trains on fewer, and while it waits, others use the slots. If two
    gangs do not fit together, running ones come first, then older ones.

    If slots cost money, a pinned gang has nodes of its own, and the policy sees the money without
    the cost of these until the deadline.

    No trial has more slots than it can train on, even if it is pinned to more.

    Args:
        policy: Plans all others.
    """

    policy: Policy

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan for the trials without a request, and the requests."""
        snapshot, limits = _within_limits(snapshot)
        plan = self._plan_with_requests(snapshot)
        asked = {request.number: request for request in snapshot.requests}
        while over := _reduced_orders(plan, limits):
            if snapshot.money is not None:  # a pinned gang would have its own nodes
                return replace(plan, orders={**plan.orders, **over})
            for number, order in over.items():
                asked[number] = Request(number, pinned=order.slots, why=order.reason)
            plan = self._plan_with_requests(replace(snapshot, requests=tuple(asked.values())))
        return plan

    def _plan_with_requests(self, snapshot: Snapshot) -> Plan:
        if not snapshot.requests:
            return self.policy.plan(snapshot)
        asked = {request.number: request for request in snapshot.requests}
        trials = [trial for trial in snapshot.alive if trial.number in asked]
        if not trials:
            return self.policy.plan(snapshot)
        held = {
            trial.number: Pause(asked[trial.number].why or _HELD)
            for trial in trials
            if asked[trial.number].held
        }
        pins = [
            (trial, size)
            for trial in trials
            if (size := asked[trial.number].pinned) is not None and not asked[trial.number].held
        ]
        # A request without content is none.
        gone = {*held, *(trial.number for trial, _ in pins)}
        rest = _without(snapshot, gone)
        if snapshot.money is not None:
            return self._with_money(snapshot, rest, snapshot.money, held, pins)
        seated, orders = _place_pins(pins, snapshot.capacity, snapshot.largest_gang, node=1)
        orders |= {
            number: replace(order, reason=asked[number].why)
            for number, order in orders.items()
            if isinstance(order, Run) and asked[number].why
        }
        plan = self._plan_on(rest, snapshot.capacity - seated)
        return _completed(plan, orders, held)

    def _plan_on(self, rest: Snapshot, capacity: int) -> Plan:
        """The policy's plan on a number of slots; policies need at least one."""
        if capacity > 0:
            gang = min(rest.largest_gang, capacity)
            return self.policy.plan(replace(rest, capacity=capacity, largest_gang=gang))
        waits = {trial.number: Pause(_NO_ROOM) for trial in rest.alive}
        gate = rest.capacity > 0 and self.policy.plan(rest).gate_open
        return Plan(orders=waits, gate_open=gate)

    def _with_money(
        self,
        snapshot: Snapshot,
        rest: Snapshot,
        money: Money,
        held: Mapping[int, Order],
        pins: Sequence[tuple[TrialView, int]],
    ) -> Plan:
        """The plan if the pool is bought: pinned gangs are paid for first."""
        if money.left <= 0:
            broke: dict[int, Order] = {
                trial.number: Pause("the budget is spent") for trial, _ in pins
            }
            return _completed(self.policy.plan(rest), broke, held)
        wanted, _ = _place_pins(pins, money.affordable, snapshot.largest_gang, money.node)
        _, orders = _place_pins(
            pins, min(snapshot.capacity, wanted), snapshot.largest_gang, money.node
        )
        cost = money.nodes(wanted) * money.charge(snapshot.time_left)
        money_left = replace(
            money,
            spent=min(money.budget, money.spent + cost),
            offer=money.offer - wanted,
            held=max(0, money.held - wanted),
        )
        plan = self.policy.plan(
            replace(
                rest,
                capacity=max(0, snapshot.capacity - wanted),
                largest_gang=max(1, min(snapshot.largest_gang, money.offer - wanted)),
                money=money_left,
            )
        )
        size = plan.pool_slots
        if size is not None:
            size = min(size + wanted, money.affordable)
        elif wanted > snapshot.capacity:
            size = wanted  # the policy names no size, and the present one is too small
        return replace(_completed(plan, orders, held), pool_slots=size)


def _within_limits(snapshot: Snapshot) -> tuple[Snapshot, dict[int, int]]:
    """The study with gangs and pins limited to what its trials can use, and their limits."""
    most = snapshot.max_slots
    bounds = {t.number: [b for b in (most, t.slot_limit) if b is not None] for t in snapshot.alive}
    limits = {number: min(known) for number, known in bounds.items() if known}
    if most is None and not limits:
        return snapshot, limits
    if len(limits) == len(snapshot.alive):
        most = max(limits.values(), default=most)
    largest = min(snapshot.largest_gang, most or snapshot.largest_gang)
    requests = []
    for request in snapshot.requests:
        if request.pinned is not None:
            least = limits.get(request.number, request.pinned)
            request = request._replace(pinned=min(request.pinned, least))
        requests.append(request)
    return replace(snapshot, largest_gang=largest, requests=tuple(requests)), limits


def _reduced_orders(plan: Plan, limits: Mapping[int, int]) -> dict[int, Run]:
    """The orders of trials that were given more slots than they can use."""
    return {
        number: Run(limit, f"{limit} of {order.slots}: it cannot use more")
        for number, limit in limits.items()
        if isinstance(order := plan.orders.get(number), Run) and order.slots > limit
    }


def _without(snapshot: Snapshot, gone: set[int]) -> Snapshot:
    """The study with some trials shown as placed.

    If they were shown as complete, a policy would believe that they have trained to their end.
    """
    trials = tuple(
        replace(trial, state="placed", slots=0) if trial.number in gone else trial
        for trial in snapshot.trials
    )
    return replace(snapshot, trials=trials, requests=())


def _place_pins(
    pins: Sequence[tuple[TrialView, int]], slots: int, largest: int, node: int
) -> tuple[int, dict[int, Order]]:
    """The pinned gangs that fit, orders for those that wait, and the slots that they use.

    Args:
        pins: Trials and their pinned sizes.
        slots: The number of slots.
        largest: The largest possible gang.
        node: Slots of a node; a gang takes whole nodes.
    """
    left, orders = slots, dict[int, Order]()
    for trial, size in sorted(pins, key=lambda pin: (pin[0].slots != pin[1], pin[0].number)):
        taken = -(-size // node) * node
        if size <= largest and taken <= left:
            left -= taken
            orders[trial.number] = Run(size, _pinned_reason(trial, size))
        else:
            orders[trial.number] = Pause(f"waits: pinned to {size}, and too few are free")
    return slots - left, orders


def _pinned_reason(trial: TrialView, size: int) -> str:
    if trial.slots in (0, size):
        return f"{'keeps' if trial.slots else 'resumes on'} {size}: pinned by request"
    move = "grows" if size > trial.slots else "shrinks"
    return f"{move} {trial.slots} -> {size}: pinned by request"


def _completed(plan: Plan, orders: dict[int, Order], held: Mapping[int, Order]) -> Plan:
    """The plan with requests first: the first trial that is placed finds free slots."""
    return replace(plan, orders={**orders, **plan.orders, **held})


@dataclass(frozen=True)
class BatchDivisorPolicy:
    """A policy whose gangs divide the batches of trials that require it.

    The policy sees no useful size that fits none of the trials, and a trial gets the largest size
    that fits within its order. A slot that no trial can use stays idle.

    Args:
        policy: The policy.
    """

    policy: Policy

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan, in sizes that fit."""
        batches = {t.number: t.batch for t in snapshot.alive if t.batch is not None}
        if not batches:
            return self.policy.plan(snapshot)
        plan = self.policy.plan(_with_divisor_sizes(snapshot))
        orders = {
            number: _fit_to_batch(order, batches.get(number))
            for number, order in plan.orders.items()
        }
        fitted = replace(plan, orders=orders)
        idle = snapshot.capacity - fitted.slots
        if idle > 0:
            fitted = replace(
                fitted,
                orders={
                    number: _with_reason(order, batches.get(number), snapshot.largest_gang)
                    for number, order in orders.items()
                },
            )
        return fitted


def largest_divisor(slots: int, batch: int | None) -> int:
    """The largest size up to ``slots`` that divides a batch; any size without a batch."""
    if batch is None:
        return slots
    return next((size for size in range(slots, 1, -1) if batch % size == 0), min(slots, 1))


def divisor_reason(slots: int, batch: int) -> str:
    """Why a trial does not have this number of slots."""
    return f"{slots} slots do not divide its batch of {batch}"


@dataclass(frozen=True)
class _DivisorSpeedup(Speedup):
    """S(k) with some useful sizes only."""

    batches: frozenset[int] = field(default_factory=frozenset)

    def useful(self, limit: int) -> list[int]:
        sizes = [1]
        for slots in range(2, limit + 1):
            fits = any(batch % slots == 0 for batch in self.batches)
            if fits and self(slots) >= WORTHWHILE * self(sizes[-1]):
                sizes.append(slots)
        return sizes


def _with_divisor_sizes(snapshot: Snapshot) -> Snapshot:
    if any(_accepts_any_size(trial) for trial in snapshot.alive):
        return snapshot
    batches = frozenset(trial.batch for trial in snapshot.alive if trial.batch is not None)
    known = vars(snapshot.speedup)
    shown = _DivisorSpeedup(
        **{name: known[name] for name in snapshot.speedup.__match_args__}, batches=batches
    )
    return replace(snapshot, speedup=shown)


def _accepts_any_size(trial: TrialView) -> bool:
    """Whether uneven slices are allowed; a trial without a report has not stated it yet."""
    return trial.batch is None and bool(trial.reports)


def _fit_to_batch(order: Order, batch: int | None) -> Order:
    if not isinstance(order, Run) or batch is None:
        return order
    size = largest_divisor(order.slots, batch)
    if size == order.slots:
        return order
    return Run(size, f"{size} of {order.slots}: {divisor_reason(order.slots, batch)}")


def _with_reason(order: Order, batch: int | None, largest: int) -> Order:
    """Add the reason for idle slots to the first trial that could use them."""
    if not isinstance(order, Run) or batch is None or order.slots >= largest:
        return order
    more = order.slots + 1
    if batch % more == 0 or "do not divide" in order.reason:
        return order
    return Run(order.slots, f"{order.reason}; {divisor_reason(more, batch)}")
