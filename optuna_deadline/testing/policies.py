"""A conformance suite for policies, in the style of Optuna's suite for samplers.

Subclass :class:`PolicyTestCase` in a test module and override its ``policy`` fixture. Needs pytest
and hypothesis.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optuna_deadline.forecasting.throughput import Overhead, Speedup
from optuna_deadline.policies import (
    Money,
    Order,
    Pause,
    Plan,
    Policy,
    Report,
    Retire,
    Run,
    Snapshot,
    TrialView,
)
from optuna_deadline.policies.curve import ReportCurve
from optuna_deadline.policies.wrappers import BatchDivisorPolicy

#: Rounds until a plan settles; slots that a trial cannot use go to another in the next round.
_SETTLED = 6
_STATES = ["ready", "running", "running", "paused", "paused", "retired", "complete", "placed"]
_SPEEDUPS: list[dict[int, float]] = [{}, {2: 1.9, 4: 3.5}, {2: 0.8}, {2: 1.2, 4: 1.1}]
_property = settings(
    deadline=None,
    # Fixtures are values here, and several classes inherit one test.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


# Made once, since making a strategy takes longer than drawing from it.
_STATE = st.sampled_from(_STATES)
_STEPS = st.integers(0, 20)
_SCORE = st.one_of(st.floats(-10, 10), st.just(-math.inf))
_CURVE = st.lists(_SCORE, min_size=1, max_size=4)
_PACE = st.floats(0.5, 2)
_SLOTS = st.sampled_from([1, 1, 2, 4])
_CHANGED = st.floats(0, 100)
_HORIZON = st.sampled_from([None, 20, 81])
_BATCH = st.sampled_from([None, 2, 3, 6, 64])
_STEP_SECONDS = st.sampled_from([None, 0.5, 3.0])


__all__ = ["PolicyTestCase"]


@st.composite
def trial_views(draw: st.DrawFn, number: int) -> TrialView:
    """Trials in any state, including diverged ones and ones without a report."""
    state = draw(_STATE)
    steps = draw(_STEPS) if state != "ready" else 0
    # Few different values, since rules fail at ties.
    curve, pace = (draw(_CURVE), draw(_PACE)) if steps else ([], 0.0)
    reports = tuple(
        Report(step, curve[step % len(curve)], 1.0 + step * pace) for step in range(steps)
    )
    return TrialView(
        number=number,
        state=state,
        slots=draw(_SLOTS) if state == "running" else 0,
        reports=ReportCurve(reports),
        changed=draw(_CHANGED),
        horizon=draw(_HORIZON),
        step_seconds=draw(_STEP_SECONDS) if reports else None,
    )


@st.composite
def purses(draw: st.DrawFn, worker: int, capacity: int) -> Money:
    """Budgets in any state, including spent ones, with nodes as large as the workers."""
    budget = draw(st.floats(0.0, 1000.0))
    return Money(
        budget=budget,
        spent=budget * draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])),
        price=draw(st.sampled_from([0.001, 0.1, 1.0])),
        granularity=draw(st.sampled_from([1.0, 60.0])),
        startup=draw(st.sampled_from([0.0, 60.0])),
        minimum=draw(st.sampled_from([0.0, 60.0])),
        node=worker,
        offer=worker * draw(st.integers(5, 8)),
        held=capacity + worker * draw(st.integers(0, 2)),  # some nodes still start
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Snapshots that a planner may see: slots may be lost, gangs may not scale."""
    worker = draw(st.integers(1, 4))
    capacity = worker * draw(st.integers(1, 3))
    return Snapshot(
        now=100.0,
        started=0.0,
        deadline=100.0 + draw(st.floats(0, 1000)),
        capacity=capacity,
        largest_gang=worker,
        trials=tuple(draw(trial_views(number)) for number in range(draw(st.integers(0, 12)))),
        speedup=Speedup(draw(st.sampled_from(_SPEEDUPS))),
        overhead=Overhead(draw(st.floats(0.1, 20)), 0.5),
        money=draw(st.none() | purses(worker, capacity)),
    )


def carried_out(before: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot after a plan was carried out, before any new report.

    Released slots are gone; bought ones have not come yet.
    """
    after = []
    for view in before.trials:
        order = plan.orders.get(view.number)
        slots = order.slots if isinstance(order, Run) else 0
        state = view.state
        if isinstance(order, Run):
            state = "running"
        elif isinstance(order, Pause) and view.state != "ready":
            state = "paused"
        elif isinstance(order, Retire):
            state = "retired"
        changed = before.now if slots != view.slots else view.changed
        after.append(replace(view, state=state, slots=slots, changed=changed))
    first = max((view.number for view in before.trials), default=-1) + 1
    new = [TrialView(first + i, "running", 1, changed=before.now) for i in range(plan.start)]
    capacity, money = before.capacity, before.money
    if plan.pool_slots is not None and money is not None:
        capacity = min(capacity, plan.pool_slots)
        money = replace(money, held=plan.pool_slots)
    return replace(before, trials=(*after, *new), capacity=capacity, money=money)


def without_words(item: tuple[int, Order]) -> tuple[int, str, int]:
    """A trial's order, without its reason."""
    number, order = item
    return number, type(order).__name__, order.slots if isinstance(order, Run) else 0


class PolicyTestCase:
    """The properties of every plan of every policy, tested on generated studies.

    Example:
        ```python
        class TestMine(PolicyTestCase):
            @pytest.fixture
            def policy(self):
                return Mine()
        ```
    """

    @pytest.fixture
    def policy(self) -> Policy:
        """The policy; override this fixture."""
        raise NotImplementedError("Override the fixture `policy`.")

    @given(view=snapshots())
    @_property
    def test_a_plan_can_be_carried_out(self, policy: Policy, view: Snapshot) -> None:
        """A plan fits the pool, a gang fits a worker, and each unfinished trial has an order."""
        plan = policy.plan(view)
        assert 0 <= plan.slots <= view.capacity
        runs = [order for order in plan.orders.values() if isinstance(order, Run)]
        assert all(1 <= order.slots <= view.largest_gang for order in runs)
        assert set(plan.orders) == {trial.number for trial in view.trials if trial.alive}
        assert all(order.reason for order in plan.orders.values()), "a user must read why"
        if any(trial.step_seconds for trial in view.trials):
            late = policy.plan(replace(view, now=view.deadline))
            assert late.start == 0, "nothing starts when the time is over"

    @given(view=snapshots(), seed=st.integers(0, 2**32))
    @_property
    def test_a_plan_depends_on_the_state_alone(
        self, policy: Policy, view: Snapshot, seed: int
    ) -> None:
        """A plan depends neither on earlier calls nor on the order of the trials."""
        plan = policy.plan(view)
        assert policy.plan(view) == plan
        shuffled = list(view.trials)
        random.Random(seed).shuffle(shuffled)
        assert policy.plan(replace(view, trials=tuple(shuffled))) == plan

    @given(view=snapshots(), part=st.floats(0.0, 0.999))
    @_property
    def test_a_plan_holds_as_long_as_it_says(
        self, policy: Policy, view: Snapshot, part: float
    ) -> None:
        """Until ``holds_until`` the orders stay the same, except their reasons, if time passes."""
        plan = policy.plan(view)
        if plan.holds_until is None or plan.holds_until <= view.now:
            return
        end = min(plan.holds_until, view.deadline)
        again = policy.plan(replace(view, now=view.now + part * (end - view.now)))
        assert [without_words(o) for o in again.orders.items()] == [
            without_words(o) for o in plan.orders.items()
        ]
        assert (again.start, again.gate_open) == (plan.start, plan.gate_open)
        assert again.pool_slots == plan.pool_slots

    @given(view=snapshots())
    @_property
    def test_no_flapping(self, policy: Policy, view: Snapshot) -> None:
        """A second plan on the result changes nothing."""
        after = carried_out(view, policy.plan(view))
        again = policy.plan(after)
        for trial in after.trials:
            order = again.orders.get(trial.number)
            assert (order.slots if isinstance(order, Run) else 0) == trial.slots, order
        assert again.start == 0

    @given(view=snapshots(), data=st.data())
    @_property
    def test_gangs_divide_batches_where_that_is_asked(
        self, policy: Policy, view: Snapshot, data: st.DataObject
    ) -> None:
        """Under the planner's wrapper, gangs have valid sizes and a reason, and plans settle."""
        trials = tuple(replace(trial, batch=data.draw(_BATCH)) for trial in view.trials)
        view = replace(view, trials=trials)
        batches = {trial.number: trial.batch for trial in trials}
        fitted = BatchDivisorPolicy(policy)
        plan = fitted.plan(view)
        assert plan == fitted.plan(view) and 0 <= plan.slots <= view.capacity
        for number, order in plan.orders.items():
            if isinstance(order, Run):
                assert 1 <= order.slots <= view.largest_gang
                assert (batches[number] or 0) % order.slots == 0, order
        for _ in range(_SETTLED):
            before, view = view, carried_out(view, fitted.plan(view))
            if [t.slots for t in before.trials] == [t.slots for t in view.trials]:
                return
        raise AssertionError("slots change hands without end")

    @given(view=snapshots())
    @_property
    def test_the_budget_is_never_broken(self, policy: Policy, view: Snapshot) -> None:
        """The requested pool is available, has room for the plan, and its start can be paid."""
        plan, money = policy.plan(view), view.money
        if plan.pool_slots is None:
            return
        assert money is not None, "without money the pool is what it is"
        assert 0 <= plan.pool_slots <= money.offer and plan.pool_slots % money.node == 0
        assert plan.slots <= plan.pool_slots
        new = max(0, money.nodes(plan.pool_slots) - money.nodes(money.held))
        assert new * money.entrance <= money.left + 1e-6
        if money.left <= 0:
            assert plan.pool_slots == 0 and plan.slots == 0
