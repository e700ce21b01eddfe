"""A trial that starts makes a step before a plan moves it, and one that cannot resume stays."""

from __future__ import annotations

from dataclasses import dataclass, replace

from optuna_deadline.policies.api import Plan, Policy, Request, Retire, Run, Snapshot, TrialView

_REASON = "keeps {} until its first step"
_STAYS = "keeps its slots, since it could not resume from here"


@dataclass(frozen=True)
class FirstStepPolicy:
    """Keeps the slots of each trial whose segment has not trained yet, or that cannot resume.

    A plan that changes its mind while a trial starts would lose the time of that start. The trial
    keeps its slots as if a user had pinned them there, and the policy plans the others; no longer
    than twice the time that a stop and a start take.

    If slots cost money, the policy's plan stands: a pinned gang would have nodes of its own.

    Args:
        policy: Applies requests.
    """

    policy: Policy

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan, with the slots of starting trials unchanged."""
        plan = self.policy.plan(snapshot)
        if snapshot.money is not None:
            return plan
        asked = {request.number for request in snapshot.requests}
        starting = {
            trial.number: trial
            for trial in snapshot.alive
            if (_starts(trial, snapshot) or _must_stay(trial)) and trial.number not in asked
        }
        requests = snapshot.requests
        while moved := [trial for trial in starting.values() if _is_moved(plan, trial)]:
            for trial in moved:
                del starting[trial.number]
                why = _STAYS if _must_stay(trial) else _REASON.format(trial.slots)
                requests += (Request(trial.number, pinned=trial.slots, why=why),)
            plan = self.policy.plan(replace(snapshot, requests=requests))
            plan = replace(plan, holds_until=None)  # the first step changes it
        return plan


def _starts(trial: TrialView, snapshot: Snapshot) -> bool:
    """Whether its segment has begun lately and made no step."""
    if not (trial.running and trial.starting):
        return False
    fits = trial.slot_limit is None or trial.slots <= trial.slot_limit
    return fits and snapshot.now - trial.changed < 2 * snapshot.overhead.total


def _must_stay(trial: TrialView) -> bool:
    """Whether it could not resume from where it is."""
    return trial.running and trial.pausable is False


def _is_moved(plan: Plan, trial: TrialView) -> bool:
    order = plan.orders.get(trial.number)
    if isinstance(order, Retire) and _must_stay(trial):
        return False
    return not isinstance(order, Run) or order.slots != trial.slots
