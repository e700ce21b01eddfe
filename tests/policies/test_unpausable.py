"""Trials of an objective that cannot be paused keep their slots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.policies import Pause, Policy, Report, Run, Snapshot, TrialView, registry
from optuna_deadline.policies.pruner import MeasuredHalving
from optuna_deadline.policies.unpausable import UnpausablePolicy, cannot_pause, stopping_policy

PAUSING = ["adaptive_halving", "hypersched", "asha_promote", "hermes", "round_robin"]


def trial(number: int, values: list[float], **facts: object) -> TrialView:
    reports = tuple(Report(step, value, float(step)) for step, value in enumerate(values, start=1))
    view = TrialView(number, "running", slots=1, reports=reports, step_seconds=1.0)
    return replace(view, **facts)  # type: ignore[arg-type]


def unpausable(policy: Policy) -> UnpausablePolicy:
    return UnpausablePolicy(policy, stopping_policy(policy))


def test_the_first_trial_that_has_reported_decides() -> None:
    silent = trial(0, [])
    assert not cannot_pause([])
    assert not cannot_pause([silent])
    assert cannot_pause([silent, trial(1, [0.1], pausable=False), trial(2, [0.1])])
    assert not cannot_pause([silent, trial(1, [0.1]), trial(2, [0.1], pausable=False)])
    assert not cannot_pause([trial(1, [0.1], pausable=True)])


@pytest.mark.parametrize("facts", [{"horizon": 9}, {"batch": 32}])
def test_a_trial_that_keeps_its_slots_later_decides_nothing(
    facts: dict[str, int],
) -> None:
    assert not cannot_pause([trial(1, [0.1], pausable=False, **facts), trial(2, [0.1])])


@pytest.mark.parametrize("name", PAUSING)
@given(curves=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=9), min_size=4, max_size=4))
def test_no_running_trial_is_paused(name: str, curves: list[list[float]]) -> None:
    trials = [trial(number, values, pausable=False) for number, values in enumerate(curves)]
    snapshot = Snapshot(50.0, 0.0, 100.0, capacity=4, largest_gang=4, trials=tuple(trials))
    plan = unpausable(registry.make_policy(name, {"max_resource": 9})).plan(snapshot)
    assert not any(isinstance(order, Pause) for order in plan.orders.values())
    assert all(order.slots == 1 for order in plan.orders.values() if isinstance(order, Run))


def test_a_policy_decides_as_before_where_trials_can_be_paused() -> None:
    policy = registry.make_policy("adaptive_halving", {"max_resource": 9})
    trials = tuple(trial(number, [0.5, number / 9]) for number in range(4))
    snapshot = Snapshot(50.0, 0.0, 100.0, capacity=4, largest_gang=4, trials=trials)
    assert unpausable(policy).plan(snapshot) == policy.plan(snapshot)


def test_a_policy_that_never_pauses_stays() -> None:
    for name in ("fifo", "asha", "median", "pruner"):
        policy = registry.make_policy(name, {})
        assert stopping_policy(policy) is policy
    hypersched = registry.make_policy("hypersched", {"min_resource": 2, "max_resource": 9})
    assert stopping_policy(hypersched) == MeasuredHalving(2, 9, hypersched.reduction_factor)  # type: ignore[attr-defined]
