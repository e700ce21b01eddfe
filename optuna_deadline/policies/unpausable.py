"""Objectives that cannot pause: a trial keeps its slot until it ends or is pruned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from optuna_deadline.policies.api import Plan, Policy, Snapshot, TrialView, checked
from optuna_deadline.policies.base import Resources
from optuna_deadline.policies.baselines.fifo import Fifo
from optuna_deadline.policies.baselines.halving import Asha
from optuna_deadline.policies.baselines.stopping import Median
from optuna_deadline.policies.pruner import MeasuredHalving

#: Policies that retire trials and never pause them.
NEVER_PAUSING = (Fifo, Asha, Median, MeasuredHalving)


def cannot_pause(trials: Iterable[TrialView]) -> bool:
    """Whether a study's objective cannot pause; the first trial that has reported decides.

    One that has given its horizon or its batch uses its segment. It may keep its slots from a step
    on, from which it could not resume, but other trials can pause.
    """
    known = (trial for trial in trials if trial.reports or trial.pausable is not None)
    first = next(known, None)
    if first is None or (first.horizon, first.batch) != (None, None):
        return False
    return first.pausable is False


@dataclass(frozen=True)
class UnpausablePolicy:
    """Replaces a policy by another one if the objective cannot pause.

    For such an objective, a pause ends the trial. A policy that pauses its best trials to start
    new ones would lose them.

    Args:
        policy: Plans objectives that can pause.
        stopping: Plans all others; it retires trials and never pauses them.
    """

    policy: Policy
    stopping: Policy

    def plan(self, snapshot: Snapshot) -> Plan:
        """The plan of the policy that fits the objective."""
        chosen = self.stopping if cannot_pause(snapshot.trials) else self.policy
        return checked(chosen.plan(snapshot), type(chosen).__qualname__, snapshot)


def stopping_policy(policy: Policy) -> Policy:
    """The policy itself if it never pauses, else the rule of plain studies."""
    if isinstance(policy, NEVER_PAUSING):
        return policy
    if not isinstance(policy, Resources):
        return MeasuredHalving()
    return MeasuredHalving(
        policy.min_resource,
        policy.max_resource,
        policy.reduction_factor,
        n_trials=policy.n_trials,
    )
