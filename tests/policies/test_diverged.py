"""A trial whose newest value is not finite is given up by every policy."""

from __future__ import annotations

import math

import pytest

from optuna_deadline.policies import Report, Retire, Run, Snapshot, TrialView, registry
from optuna_deadline.policies.diverged import DivergedPolicy


def trial(number: int, *scores: float) -> TrialView:
    reports = tuple(Report(step, score, float(step)) for step, score in enumerate(scores, start=1))
    return TrialView(number, "running", slots=1, reports=reports, step_seconds=1.0)


def snapshot(*trials: TrialView) -> Snapshot:
    return Snapshot(10.0, 0.0, 100.0, capacity=len(trials), largest_gang=2, trials=trials)


@pytest.mark.parametrize("name", registry.known_policies())
@pytest.mark.parametrize("score", [-math.inf, math.inf])  # a NaN became -inf
def test_it_is_given_up(name: str, score: float) -> None:
    policy = DivergedPolicy(registry.make_policy(name, {"max_resource": 9}))
    plan = policy.plan(snapshot(trial(0, 0.5), trial(1, 0.9, score)))
    assert isinstance(plan.orders[1], Retire)
    assert plan.slots <= 2


def test_one_that_is_finite_again_goes_on() -> None:
    policy = DivergedPolicy(registry.make_policy("fifo", {}))
    plan = policy.plan(snapshot(trial(0, 0.5), trial(1, -math.inf, 0.4)))
    assert isinstance(plan.orders[1], Run)
