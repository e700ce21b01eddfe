"""What people ask for is obeyed under every policy, and costs the others no more than it takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies import (
    Money,
    Pause,
    Plan,
    Policy,
    Run,
    Snapshot,
    TrialView,
    make_policy,
)
from optuna_deadline.policies.api import Request
from optuna_deadline.policies.wrappers import RequestPolicy
from optuna_deadline.testing.policies import carried_out, snapshots, without_words

NAMES = ("hypersched", "fifo", "asha_promote", "hermes", "round_robin", "seer", "shockwave")
often = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def asked_of(draw: st.DrawFn) -> Snapshot:
    """A study of which people ask for something, of trials that have ended too."""
    view = draw(snapshots())
    requests = []
    for trial in view.trials:
        held = draw(st.sampled_from([False, False, True]))
        pinned = draw(st.sampled_from([None, None, 1, 2, 3, 9]))
        if held or pinned is not None:
            requests.append(Request(trial.number, held, pinned))
    return replace(view, requests=tuple(requests))


@cache
def policy_of(name: str) -> Policy:
    return RequestPolicy(make_policy(name, {"max_resource": 20}))


def size_of(plan: Plan, number: int) -> int:
    order = plan.orders[number]
    return order.slots if isinstance(order, Run) else 0


@pytest.mark.parametrize("name", NAMES)
@given(view=asked_of())
@often
def test_a_plan_obeys_and_can_be_carried_out(name: str, view: Snapshot) -> None:
    plan = policy_of(name).plan(view)
    living = {trial.number for trial in view.trials if trial.alive}
    assert set(plan.orders) == living and all(order.reason for order in plan.orders.values())
    assert 0 <= plan.slots <= view.capacity
    assert all(size_of(plan, number) <= view.largest_gang for number in living)
    for number, held, pinned, _ in view.requests:
        if number in living and (held or pinned is not None):
            assert size_of(plan, number) in ((0,) if held else (0, pinned))
            if held:
                assert isinstance(plan.orders[number], Pause), "it is not given up either"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "seer"])
@given(view=asked_of())
@often
def test_planning_again_changes_nothing(name: str, view: Snapshot) -> None:
    after = carried_out(view, policy_of(name).plan(view))
    again = policy_of(name).plan(after)
    for trial in after.trials:
        if trial.alive:
            assert size_of(again, trial.number) == trial.slots, again.orders[trial.number]
    assert again.start == 0


@given(view=asked_of())
@often
def test_who_waits_waits_for_want_of_room(view: Snapshot) -> None:
    """Where slots cost nothing: a pinned gang waits only where it does not fit beside others."""
    view = replace(view, money=None)
    plan = policy_of("fifo").plan(view)
    living = {trial.number: trial for trial in view.trials if trial.alive}
    pins = {r.number: r.pinned for r in view.requests if r.pinned and not r.held}
    pins = {number: size for number, size in pins.items() if number in living}
    taken = sum(size_of(plan, number) for number in pins)
    for number, size in pins.items():
        if size_of(plan, number) == 0:
            assert size > view.largest_gang or size > view.capacity - taken
        elif living[number].slots == size:
            continue  # who trains goes first
    others = [number for number in living if number not in {r.number for r in view.requests}]
    if taken == view.capacity:
        assert plan.start == 0 and all(size_of(plan, number) == 0 for number in others)


@pytest.mark.parametrize("name", ["seer", "hypersched"])
@given(view=asked_of().filter(lambda view: view.money is not None))
@often
def test_the_budget_is_kept(name: str, view: Snapshot) -> None:
    plan, money = policy_of(name).plan(view), view.money
    assert money is not None
    if plan.pool_slots is None:
        return
    assert 0 <= plan.pool_slots <= money.affordable and plan.pool_slots % money.node == 0
    assert plan.slots <= plan.pool_slots
    assert money.left > 0 or plan.slots == 0


@pytest.mark.parametrize("name", NAMES)
@given(view=snapshots())
@settings(often, max_examples=20)
def test_without_requests_it_is_the_policy(name: str, view: Snapshot) -> None:
    policy = policy_of(name)
    assert isinstance(policy, RequestPolicy)
    ended = [trial for trial in view.trials if not trial.alive]
    asked = replace(view, requests=tuple(Request(t.number, True, 2) for t in ended))
    assert policy.plan(asked) == policy.policy.plan(view)


def trial(number: int, slots: int) -> TrialView:
    return TrialView(number, "running" if slots else "paused", slots)


def plan(*trials: TrialView, asked: tuple[Request, ...], slots: int = 4) -> Plan:
    view = Snapshot(0.0, 0.0, 100.0, slots, slots, trials, requests=asked)
    return policy_of("fifo").plan(view)


def test_the_others_are_planned_round_a_pinned_gang() -> None:
    made = plan(trial(0, 1), trial(1, 1), asked=(Request(0, pinned=3),))
    assert [without_words(item) for item in made.orders.items()] == [(0, "Run", 3), (1, "Run", 1)]
    assert made.orders[0].reason == "grows 1 -> 3: pinned by request" and made.start == 0


def test_a_held_trials_slots_go_to_others() -> None:
    made = plan(trial(0, 4), asked=(Request(0, held=True),))
    assert isinstance(made.orders[0], Pause) and made.start == 4


def test_of_two_that_do_not_fit_the_one_that_trains_goes_on() -> None:
    asked = (Request(0, pinned=3), Request(1, pinned=3))
    made = plan(trial(0, 0), trial(1, 3), asked=asked)
    assert (size_of(made, 0), size_of(made, 1)) == (0, 3)
    assert made.orders[0].reason == "waits: pinned to 3, and too few are free"


def test_held_comes_before_pinned() -> None:
    made = plan(trial(0, 2), asked=(Request(0, held=True, pinned=2),))
    assert isinstance(made.orders[0], Pause)


class Spy:
    """Wants all slots that it may have, and notes what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []

    def plan(self, snapshot: Snapshot) -> Plan:
        assert snapshot.money is not None
        self.seen.append(snapshot)
        waits = {trial.number: Pause("waits") for trial in snapshot.trials if trial.alive}
        return Plan(orders=waits, pool_slots=snapshot.money.offer)


def test_what_a_pinned_gang_costs_until_the_deadline_is_not_in_the_budget() -> None:
    money = Money(budget=1000.0, spent=0.0, price=1.0, node=2, offer=8, held=4)
    asked = (Request(0, pinned=3), Request(1, pinned=9))  # nobody has nine side by side
    view = Snapshot(0.0, 0.0, 100.0, 4, 4, (trial(0, 0), trial(1, 0)), money=money, requests=asked)
    spy = Spy()
    made = RequestPolicy(spy).plan(view)
    [shown] = spy.seen
    assert shown.money == replace(money, spent=400.0, offer=4, held=0), "it has two nodes of two"
    assert (shown.capacity, shown.largest_gang) == (0, 4)
    assert (made.pool_slots, size_of(made, 0), size_of(made, 1)) == (8, 3, 0)


def test_no_more_nodes_are_bought_than_can_be_paid_for() -> None:
    money = Money(budget=100.0, spent=65.0, price=1.0, startup=30.0, offer=8, held=2)
    view = Snapshot(
        0.0, 0.0, 100.0, 2, 2, (trial(0, 0),), money=money, requests=(Request(0, pinned=1),)
    )
    assert RequestPolicy(Spy()).plan(view).pool_slots == money.affordable == 3


@st.composite
def limited(draw: st.DrawFn) -> Snapshot:
    """A study of few trials that scale well, of which some cannot train on many slots."""
    view = draw(asked_of())
    limits = st.sampled_from([None, None, 1, 2, 3])
    trials = tuple(replace(trial, slot_limit=draw(limits)) for trial in view.trials[:3])
    return replace(
        view,
        trials=trials,
        requests=tuple(request for request in view.requests if request.number < len(trials)),
        largest_gang=view.capacity,
        speedup=Speedup({2: 1.9, 4: 3.5, 8: 6.0}),
        max_slots=draw(limits),
    )


@pytest.mark.parametrize("name", NAMES)
@given(view=limited())
@often
def test_no_trial_is_given_more_slots_than_it_can_train_on(name: str, view: Snapshot) -> None:
    plan = policy_of(name).plan(view)
    assert set(plan.orders) == {trial.number for trial in view.trials if trial.alive}
    assert 0 <= plan.slots <= view.capacity
    for trial in view.trials:
        if trial.alive:
            bounds = (view.max_slots, trial.slot_limit, view.largest_gang)
            assert size_of(plan, trial.number) <= min(b for b in bounds if b is not None)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "seer"])
@given(view=limited())
@often
def test_limits_are_planned_the_same_again(name: str, view: Snapshot) -> None:
    after = carried_out(view, policy_of(name).plan(view))
    again = policy_of(name).plan(after)
    for trial in after.trials:
        if trial.alive:
            assert size_of(again, trial.number) == trial.slots, again.orders[trial.number]


class AllToTheFirst:
    """Gives all slots to the first trial, and none to the others."""

    def plan(self, view: Snapshot) -> Plan:
        alive = [trial.number for trial in view.trials if trial.alive]
        rest = {number: Pause("waits") for number in alive[1:]}
        return Plan({number: Run(view.largest_gang, "first") for number in alive[:1]} | rest)


def test_what_a_limited_trial_cannot_use_others_get() -> None:
    trials = tuple(
        TrialView(n, "running", slot_limit=limit) for n, limit in enumerate([1, 2, None])
    )
    view = Snapshot(0.0, 0.0, 100.0, 4, 4, trials)
    orders = RequestPolicy(AllToTheFirst()).plan(view).orders
    assert orders == {
        0: Run(1, "1 of 4: it cannot use more"),
        1: Run(2, "2 of 3: it cannot use more"),
        2: Run(1, "first"),
    }


def test_what_the_study_allows_is_kept_though_a_policy_asks_for_more() -> None:
    class Two:
        def plan(self, view: Snapshot) -> Plan:
            return Plan({trial.number: Run(2, "two") for trial in view.trials if trial.alive})

    view = Snapshot(0.0, 0.0, 9.0, 2, 2, (TrialView(0, "running"),), max_slots=1)
    assert RequestPolicy(Two()).plan(view).slots == 1
