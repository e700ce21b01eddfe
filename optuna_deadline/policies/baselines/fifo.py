"""First in, first out, which is random search."""

from __future__ import annotations

from dataclasses import dataclass

from optuna_deadline.policies.api import Plan, Snapshot
from optuna_deadline.policies.base import (
    Resources,
    SlotCandidate,
    one_slot_each,
    running_first,
)


@dataclass(frozen=True)
class Fifo(Resources):
    """One slot per trial, in the order of their numbers, without rungs."""

    ends_no_trial = True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Continue all trials, and start new ones on free slots."""
        claims = [SlotCandidate(trial, "its turn") for trial in running_first(snapshot.alive)]
        newcomers, end = self.trials_left_to_open(snapshot), snapshot.deadline
        return one_slot_each(snapshot, claims, newcomers=newcomers, holds_until=end)
