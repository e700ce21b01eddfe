"""First in, first out: every trial is trained to its end. With random sampling, random search."""

from __future__ import annotations

from dataclasses import dataclass

from optuna_deadline.policies.api import Plan
from optuna_deadline.policies.base import Resources
from optuna_deadline.policies.single import Claim, alive, one_slot_each, running_first
from optuna_deadline.policies.snapshot import Snapshot


@dataclass(frozen=True)
class Fifo(Resources):
    """One slot each, in the order of the trials' numbers; rungs mean nothing to it."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Let everybody go on, and fill what is free with new trials."""
        claims = [Claim(trial, "its turn") for trial in running_first(alive(snapshot))]
        newcomers, end = self.newcomers(snapshot), snapshot.deadline
        return one_slot_each(snapshot, claims, newcomers=newcomers, holds_until=end)
