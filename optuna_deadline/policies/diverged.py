"""Retires trials that report NaN or an infinite value, under every policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from optuna_deadline.policies.api import Order, Plan, Policy, Retire, Snapshot, TrialView

_REASON = "its newest value is not a finite number"


@dataclass(frozen=True)
class DivergedPolicy:
    """A policy that never sees a trial whose newest report is not finite.

    As in a plain study, such a trial is pruned at that report. Its earlier reports still count.

    Args:
        policy: Plans all others.
    """

    policy: Policy

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan, including the slots of diverged trials."""
        diverged = {trial.number for trial in snapshot.alive if _has_diverged(trial)}
        if not diverged:
            return self.policy.plan(snapshot)
        trials = tuple(
            [
                replace(trial, state="retired", slots=0) if trial.number in diverged else trial
                for trial in snapshot.trials
            ]
        )
        plan = self.policy.plan(replace(snapshot, trials=trials))
        given_up: dict[int, Order] = {number: Retire(_REASON) for number in sorted(diverged)}
        return replace(plan, orders={**plan.orders, **given_up})


def _has_diverged(trial: TrialView) -> bool:
    return bool(trial.reports) and not math.isfinite(trial.last_score)
