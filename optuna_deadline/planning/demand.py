"""What a study's planner says of its study to the pool: how much it needs."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import replace
from operator import attrgetter

from optuna_deadline.allocation.records import StudyClaim
from optuna_deadline.planning.reading import Reading
from optuna_deadline.policies.api import Pause, Plan, Policy, Run, Snapshot

#: Slots are given up when they were not wanted for so many overheads of a resize, and seconds.
_OVERHEADS, _SECONDS = 5.0, 5.0

_NUMBER = attrgetter("number")


def unconstrained_plan(policy: Policy, reading: Reading, max_pool_slots: int = 0) -> Plan:
    """What the policy would do with all the slots that the study's workers reach, or could be had.

    Where they are all drained, what it would do with one: policies are not asked about none.
    """
    reach = [*reading.reach.values(), 0]
    capacity = max(1, max_pool_slots, sum(reach))
    largest = max(1, reading.worker_groups.largest(reading.reach))
    everything = replace(reading.snapshot, capacity=capacity, largest_gang=largest)
    return policy.plan(everything)


def idle_plan(snapshot: Snapshot, unconstrained: Plan) -> Plan:
    """The plan of a study that has no slot at present: policies are not asked about none."""
    rest = {trial.number: Pause("waits for a slot") for trial in snapshot.trials if trial.alive}
    return Plan(orders=rest, gate_open=unconstrained.gate_open)


class ClaimEstimator:
    """Turns wishes into claims: quick to say that the study needs more, slow to say less."""

    def __init__(self) -> None:
        self._wanted: deque[tuple[float, int]] = deque()  # when last, ever fewer slots

    def estimate(self, reading: Reading, unconstrained: Plan) -> StudyClaim:
        """The claim that goes with a reading and the wish made of it."""
        snapshot = reading.snapshot
        most = self._max_slots(snapshot, max(unconstrained.slots, unconstrained.pool_slots or 0))
        return StudyClaim(
            live=reading.live_trials,
            most=most,
            done=reading.slot_seconds_done,
            remaining=_slot_seconds_left(snapshot, unconstrained, most),
        )

    def _max_slots(self, snapshot: Snapshot, slots: int) -> int:
        """The most that was wanted lately."""
        while self._wanted and self._wanted[-1][1] <= slots:
            self._wanted.pop()
        self._wanted.append((snapshot.now, slots))
        patience = max(_SECONDS, _OVERHEADS * snapshot.overhead.total)
        while snapshot.now - self._wanted[0][0] > patience:
            self._wanted.popleft()
        return self._wanted[0][1]


def _slot_seconds_left(snapshot: Snapshot, unconstrained: Plan, max_slots: int) -> float | None:
    """Slot-seconds until the study ends, our estimate; None before a pace is known.

    A study with an open gate uses what it gets until its deadline; else its running trials are to
    be trained to their last step.
    """
    limit = max_slots * snapshot.time_left
    if unconstrained.gate_open:
        return limit
    total = 0.0
    runs = {n: order.slots for n, order in unconstrained.orders.items() if isinstance(order, Run)}
    for number in sorted(runs):
        trial = snapshot.trials[bisect_left(snapshot.trials, number, key=_NUMBER)]
        if trial.horizon is None or trial.step_seconds is None:
            return None
        slots_per_speed = runs[number] / max(snapshot.speedup(runs[number]), 1e-9)
        total += max(0, trial.horizon - trial.step) * trial.step_seconds * slots_per_speed
    return min(total, limit)
