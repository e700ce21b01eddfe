"""One epoch of each trial, then the best to their ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from optuna_deadline.policies.api import Order, Pause, Plan, Snapshot
from optuna_deadline.policies.base import (
    Resources,
    SlotCandidate,
    one_slot_each,
    running_first,
)


@dataclass(frozen=True)
class OneEpoch(Resources):
    """Train every trial for one epoch, then the best to their ends (Egele et al., 2023).

    Our reconstruction: new trials start as long as the best can still train to their ends
    afterwards.

    Args:
        top: How many train to their ends first; None for one per slot. If slots are free, the next
            best follow.
    """

    top: int | None = None

    def plan(self, snapshot: Snapshot) -> Plan:
        """First the epoch of started trials, then new trials or the best."""
        rungs = self.index_of(snapshot.trials).rungs
        recorded = rungs[0].recorded if rungs else {}
        trials = snapshot.alive
        begun = running_first([trial for trial in trials if trial.number not in recorded])
        ranked = sorted(
            (trial for trial in trials if trial.number in recorded),
            key=lambda trial: (-recorded[trial.number], trial.number),
        )
        claims = [SlotCandidate(trial, "its first epoch") for trial in begun]
        until = self._explores_until(snapshot)
        if snapshot.now < until:
            orders: dict[int, Order] = {
                trial.number: Pause("waits until every trial has had an epoch") for trial in ranked
            }
            newcomers = self.trials_left_to_open(snapshot)
            return one_slot_each(snapshot, claims, orders, newcomers=newcomers, holds_until=until)
        best = [SlotCandidate(trial, "among the best after one epoch") for trial in ranked]
        end = snapshot.deadline
        return one_slot_each(snapshot, claims, newcomers=0, leftovers=best, holds_until=end)

    def _explores_until(self, snapshot: Snapshot) -> float:
        """When the last trial may start, by present measurements."""
        if self.trials_left_to_open(snapshot) == 0:
            return -math.inf
        paces = [t.step_seconds for t in snapshot.trials if t.step_seconds is not None]
        last = self.last_step(snapshot.trials)
        if not paces:
            return snapshot.deadline
        if last is None:
            return (snapshot.started + snapshot.deadline) / 2
        waves = math.ceil((self.top or snapshot.capacity) / max(1, snapshot.capacity))
        whole = snapshot.overhead.startup + (last - self.min_resource) * median(paces)
        return snapshot.deadline - waves * whole
