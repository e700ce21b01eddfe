"""A trial that starts makes a step before a plan moves it, under every policy."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optuna_deadline.policies import (
    Plan,
    Policy,
    Retire,
    Run,
    Snapshot,
    known_policies,
    make_policy,
)
from optuna_deadline.policies.first_step import FirstStepPolicy
from optuna_deadline.policies.wrappers import RequestPolicy
from optuna_deadline.simulation import Cluster, Simulation, generate
from optuna_deadline.testing.policies import snapshots

NAMES = ("adaptive_halving", "hypersched", "hermes", "seer", "shockwave")
often = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@cache
def policy_of(name: str) -> Policy:
    return FirstStepPolicy(RequestPolicy(make_policy(name, {"max_resource": 20})))


@st.composite
def starting(draw: st.DrawFn) -> Snapshot:
    """A study some of whose trials have not made the first step of their segment."""
    view = draw(snapshots())
    trials = []
    for trial in view.trials:
        if trial.running and draw(st.booleans()):
            ago = draw(st.sampled_from([0.0, 1.9, 2.1])) * view.overhead.total
            trial = replace(trial, starting=True, changed=view.now - ago)
        trials.append(trial)
    return replace(view, trials=tuple(trials), money=None)


def kept(plan: Plan, view: Snapshot) -> list[bool]:
    """By starting trial, whether it keeps its slots."""
    orders = [
        (plan.orders.get(trial.number), trial.slots)
        for trial in view.trials
        if trial.starting and view.now - trial.changed < 2 * view.overhead.total
    ]
    return [isinstance(order, Run) and order.slots == slots for order, slots in orders]


@pytest.mark.parametrize("name", NAMES)
@often
@given(view=starting())
def test_a_starting_trial_keeps_its_slots(name: str, view: Snapshot) -> None:
    plan = policy_of(name).plan(view)
    assert plan.slots <= view.capacity
    running = [trial.slots for trial in view.trials if trial.running]
    if sum(running) <= view.capacity and max(running, default=0) <= view.largest_gang:
        assert all(kept(plan, view)), plan


@pytest.mark.parametrize("name", known_policies())
def test_no_simulated_segment_ends_by_a_plan_before_its_first_step(name: str) -> None:
    work = generate("crossing", 1, configurations=30, steps=27, step_seconds=4.0)
    policy = make_policy(name, {"max_resource": work.steps})
    study = Simulation(policy, work, Cluster(slots=2, startup=8.0), deadline=5 * work.full_seconds)
    study.run()
    ended = [row for row in study.world.table.segments() if not row.stepped]
    assert [row.outcome for row in ended if row.outcome != "deadline"] == []


@pytest.mark.parametrize("name", NAMES)
@often
@given(view=snapshots(), data=st.data())
def test_a_trial_that_could_not_resume_ends_or_stays(
    name: str, view: Snapshot, data: st.DataObject
) -> None:
    trials = [
        replace(trial, pausable=False) if trial.running and data.draw(st.booleans()) else trial
        for trial in view.trials
    ]
    view = replace(view, trials=tuple(trials), money=None)
    plan = policy_of(name).plan(view)
    assert plan.slots <= view.capacity
    running = [trial.slots for trial in view.trials if trial.running]
    if sum(running) <= view.capacity and max(running, default=0) <= view.largest_gang:
        for trial in view.trials:
            order = plan.orders.get(trial.number)
            if trial.running and trial.pausable is False and not isinstance(order, Retire):
                assert isinstance(order, Run) and order.slots == trial.slots
