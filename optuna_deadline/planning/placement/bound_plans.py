"""Plans that can be placed now, for policies that know neither hosts nor dead workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optuna_deadline.allocation.records import Assignment, PlannedTrial
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.planning.placement.data_locality import CheckpointLocality, HostBinding
from optuna_deadline.planning.placement.gangs import SpreadRules, assign_workers, spread_rules
from optuna_deadline.planning.reading import Reading
from optuna_deadline.policies.api import Plan, Policy, Request, Run, Snapshot

#: Why a trial waits that cannot be granted to another worker before its slots are reaped.
_UNREAPED = "waits until the lease of its dead worker is over"

#: The policy plans at most this often; trials that still cannot be placed wait.
_ROUNDS = 4


class BoundPlanner:
    """Makes a study's policy plan within the bindings of its trials.

    Args:
        table: The allocation table.
    """

    def __init__(self, table: AllocationTable) -> None:
        self._locality = CheckpointLocality(table)
        self.bindings: Mapping[int, HostBinding] = {}  #: in the last reading
        #: by waiting trial, why it waits: for a host or for the reaper
        self.wait_reasons: Mapping[int, str] = {}
        self._unreaped: Mapping[int, str] = {}

    def update(self, reading: Reading) -> None:
        """Read which trials are bound now, and which a dead worker still owns."""
        self.bindings = self._locality.bindings(
            reading.workers, reading.trials, reading.snapshot.now
        )
        living = {worker.id for worker in reading.workers}
        self._unreaped = {
            row.number: _UNREAPED
            for row in reading.trials.values()
            if row.alive and row.owner is not None and row.owner not in living
        }
        self.wait_reasons = self._unreaped  # of a study without slots, for which nothing plans

    def plan(self, policy: Policy, reading: Reading) -> Plan:
        """The policy's plan within the bindings, for the trials that may be granted slots."""
        if not self.bindings:
            self.wait_reasons = self._unreaped
            return policy.plan(_with_held(reading.snapshot, self._unreaped))
        plan, self.wait_reasons = plan_with_bindings(
            policy, reading.snapshot, reading.capacities, reading.trials, self.bindings,
            spread_rules(reading), self._unreaped,
        )  # fmt: skip
        return plan

    def reason_changes(self, current: Mapping[int, PlannedTrial]) -> list[Assignment]:
        """Reasons to update: a trial that waits for a host says so, whatever paused it before."""
        return [
            Assignment(number, "pause", None, 0, words)
            for number, words in self.wait_reasons.items()
            if current[number].mode == "pause" and current[number].reason != words
        ]


def plan_with_bindings(
    policy: Policy,
    snapshot: Snapshot,
    capacities: Mapping[str, int],
    current: Mapping[int, PlannedTrial],
    bindings: Mapping[int, HostBinding],
    spread: SpreadRules | None = None,
    unreaped: Mapping[int, str] | None = None,
) -> tuple[Plan, Mapping[int, str]]:
    """The policy's plan for the trials that fit on the hosts they are bound to.

    A trial that does not fit is held, as by a user's request, and the policy plans again.
    Otherwise it would keep slots for this trial that others could use.

    Returns:
        The plan, and why which trials wait.
    """
    stuck = {
        number: bound.reason
        for number, bound in bindings.items()
        if not any(capacities.get(worker) for worker in bound.workers)
    }
    stuck |= unreaped or {}
    for _ in range(_ROUNDS):
        plan = policy.plan(_with_held(snapshot, stuck))
        rows = assign_workers(plan.orders, capacities, current, bindings, spread)
        idle = sum(capacities.values()) - sum(row.slots for row in rows) - plan.new_trials
        more = {
            row.number: bindings[row.number].reason
            for row in rows
            if row.mode == "pause"
            and row.number in bindings
            and isinstance(plan.orders[row.number], Run)
        }
        if not more or idle <= 0:
            break
        stuck |= more
    return plan, stuck


def _with_held(snapshot: Snapshot, stuck: Mapping[int, str]) -> Snapshot:
    if not stuck:
        return snapshot
    asked = [request for request in snapshot.requests if request.number not in stuck]
    held = [Request(number, True, why=why) for number, why in sorted(stuck.items())]
    return replace(snapshot, requests=(*asked, *held))
