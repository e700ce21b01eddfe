"""The claim of a study on its pool: how many slots it needs and for how long."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import replace
from operator import attrgetter
from statistics import median

from optuna_deadline.allocation.records import StudyClaim
from optuna_deadline.planning.reading import Reading
from optuna_deadline.policies.api import Pause, Plan, Policy, Run, Snapshot
from optuna_deadline.policies.base import Resources

#: A claim falls once slots were unused for this many resize overheads, and at least these seconds.
_OVERHEADS, _SECONDS = 5.0, 5.0

_NUMBER = attrgetter("number")


def unconstrained_plan(policy: Policy, reading: Reading, max_pool_slots: int = 0) -> Plan:
    """Plan with all slots that the study's workers reach or the budget can buy.

    If all hosts are drained, plan with one slot, because policies need at least one.
    """
    reach = [*reading.reach.values(), 0]
    capacity = max(1, max_pool_slots, sum(reach))
    largest = max(1, reading.worker_groups.largest(reading.reach))
    everything = replace(reading.snapshot, capacity=capacity, largest_gang=largest)
    return policy.plan(everything)


def idle_plan(snapshot: Snapshot, unconstrained: Plan) -> Plan:
    """The plan of a study without slots, because policies need at least one."""
    rest = {trial.number: Pause("waits for a slot") for trial in snapshot.alive}
    return Plan(orders=rest, gate_open=unconstrained.gate_open)


class ClaimEstimator:
    """Turns unconstrained plans into claims: they rise at once and fall slowly.

    Args:
        policy: The study's own.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._wanted: deque[tuple[float, int]] = deque()  # (time, slots), with ever fewer slots

    def estimate(self, reading: Reading, unconstrained: Plan) -> StudyClaim:
        """The claim for a reading and its unconstrained plan."""
        snapshot = reading.snapshot
        work, span = work_to_do(self._policy, snapshot)
        most = self._max_slots(snapshot, max(unconstrained.slots, unconstrained.pool_slots or 0))
        return StudyClaim(
            live=reading.live_trials,
            most=most,
            done=reading.slot_seconds_done,
            remaining=_slot_seconds_left(snapshot, unconstrained, most),
            work=work,
            span=span,
            restart=snapshot.overhead.total,
        )

    def _max_slots(self, snapshot: Snapshot, slots: int) -> int:
        """The most slots that recent plans wanted."""
        while self._wanted and self._wanted[-1][1] <= slots:
            self._wanted.pop()
        self._wanted.append((snapshot.now, slots))
        patience = max(_SECONDS, _OVERHEADS * snapshot.overhead.total)
        while snapshot.now - self._wanted[0][0] > patience:
            self._wanted.popleft()
        return self._wanted[0][1]


def work_to_do(policy: Policy, snapshot: Snapshot) -> tuple[float | None, float]:
    """The work of a study whose trials are counted and must all be trained.

    Returns:
        Slot-seconds, trials that are not open yet included, and the seconds that the longest of
        them needs on one slot; 0 and 0 until a pace and a last step are known. None and 0 for a
        search.
    """
    if not isinstance(policy, Resources) or not policy.has_work:
        return None, 0.0
    unopened, last = policy.trials_left_to_open(snapshot), policy.last_step(snapshot.trials)
    paces = [trial.step_seconds for trial in snapshot.trials if trial.step_seconds]
    if unopened is None:
        return None, 0.0
    if last is None or not paces:
        return 0.0, 0.0
    pace = median(paces)
    left = [
        trial.seconds_to(policy.last_step_of(trial.horizon) or last, pace) or 0.0
        for trial in snapshot.alive
    ]
    left += [last * pace] * unopened
    return sum(left), max(left, default=0.0)


def _slot_seconds_left(snapshot: Snapshot, unconstrained: Plan, max_slots: int) -> float | None:
    """Estimate the slot-seconds until the study ends; None until a pace is known.

    A study with an open gate uses its slots until the deadline. Otherwise its running trials
    train to their last step. The estimate is ours.
    """
    limit = max_slots * snapshot.time_left
    if unconstrained.gate_open:
        return limit
    total = 0.0
    runs = {n: order.slots for n, order in unconstrained.orders.items() if isinstance(order, Run)}
    for number in sorted(runs):
        trial = snapshot.trials[bisect_left(snapshot.trials, number, key=_NUMBER)]
        if trial.horizon is None or (left := trial.seconds_to(trial.horizon)) is None:
            return None
        slots_per_speed = runs[number] / max(snapshot.speedup(runs[number]), 1e-9)
        total += left * slots_per_speed
    return min(total, limit)
