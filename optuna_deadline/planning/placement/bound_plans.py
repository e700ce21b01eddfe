"""A plan that can be placed now, for policies that know of no hosts and of no dead workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optuna_deadline.allocation.records import Assignment, Desired
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.planning.placement.data_locality import Bound, Homes
from optuna_deadline.planning.placement.gangs import Spreading, place, spreading
from optuna_deadline.planning.reading import Reading
from optuna_deadline.policies.api import Plan, Policy, Request, Run, Snapshot

#: Why a trial waits that no other worker is granted before the reaper has come.
_UNREAPED = "waits until the lease of its dead worker is over"

#: A policy is asked so often at most; what cannot be placed then waits beside an idle slot.
_ROUNDS = 4


class Binding:
    """Lets a study's policy plan within what its trials are bound to.

    Args:
        table: The allocation table.
    """

    def __init__(self, table: AllocationStore) -> None:
        self._homes = Homes(table)
        self.bounds: Mapping[int, Bound] = {}  #: at the last look
        self.stuck: Mapping[int, str] = {}  #: why which trials wait, for a host or for the reaper
        self._unreaped: Mapping[int, str] = {}

    def look(self, reading: Reading) -> None:
        """Learn which trials are bound now, and which a dead worker still owns."""
        self.bounds = self._homes.bounds(reading.workers, reading.trials, reading.snapshot.now)
        living = {worker.id for worker in reading.workers}
        self._unreaped = {
            line.number: _UNREAPED
            for line in reading.trials.values()
            if line.alive and line.owner is not None and line.owner not in living
        }

    def decide(self, policy: Policy, reading: Reading) -> Plan:
        """The policy's plan, within these bounds, for the trials that may be granted slots."""
        if not self.bounds:
            self.stuck = self._unreaped
            return policy.plan(_holding(reading.snapshot, self._unreaped))
        plan, self.stuck = plan_bound(
            policy, reading.snapshot, reading.capacities, reading.trials, self.bounds,
            spreading(reading), self._unreaped,
        )  # fmt: skip
        return plan

    def reworded(self, current: Mapping[int, Desired]) -> list[Assignment]:
        """What waits for a host is said to do so, though it was paused for another reason."""
        return [
            Assignment(number, "pause", None, 0, words)
            for number, words in self.stuck.items()
            if current[number].mode == "pause" and current[number].reason != words
        ]


def plan_bound(
    policy: Policy,
    snapshot: Snapshot,
    capacities: Mapping[str, int],
    current: Mapping[int, Desired],
    bounds: Mapping[int, Bound],
    spread: Spreading | None = None,
    unreaped: Mapping[int, str] | None = None,
) -> tuple[Plan, Mapping[int, str]]:
    """The policy's plan for the trials that find room where they are bound to.

    What finds none is held, as by a person's request, and the policy is asked again: else it would
    keep slots for it that others could use.

    Returns:
        The plan, and why which trials wait.
    """
    stuck = {
        number: bound.words
        for number, bound in bounds.items()
        if not any(capacities.get(worker) for worker in bound.workers)
    }
    stuck |= unreaped or {}
    for _ in range(_ROUNDS):
        plan = policy.plan(_holding(snapshot, stuck))
        lines = place(plan.orders, capacities, current, bounds, spread)
        idle = sum(capacities.values()) - sum(line.slots for line in lines) - plan.start
        more = {
            line.number: bounds[line.number].words
            for line in lines
            if line.mode == "pause"
            and line.number in bounds
            and isinstance(plan.orders[line.number], Run)
        }
        if not more or idle <= 0:
            break
        stuck |= more
    return plan, stuck


def _holding(snapshot: Snapshot, stuck: Mapping[int, str]) -> Snapshot:
    if not stuck:
        return snapshot
    asked = [request for request in snapshot.requests if request.number not in stuck]
    held = [Request(number, True, why=why) for number, why in sorted(stuck.items())]
    return replace(snapshot, requests=(*asked, *held))
