"""SEER's programmes, and what must hold of its plans."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.headlines.rubberband_policy import (
    Job,
    fastest_seconds,
    plan_elastic,
    plan_static,
    rates_for,
)
from optuna_deadline.forecasting.throughput import Overhead, Speedup
from optuna_deadline.policies import Money, Pause, Policy, Report, Retire, Run, Snapshot, TrialView
from optuna_deadline.policies.seer.policy import Seer
from optuna_deadline.policies.seer.round_schedule import (
    Option,
    Rates,
    Work,
    cheapest,
    options,
    schedule,
)
from optuna_deadline.policies.seer.shape_search import expected_best
from optuna_deadline.testing.policies import PolicyTestCase, carried_out

PURSE = Money(7200.0, 0.0, 1.0, startup=60.0, minimum=60.0, node=4, offer=64)
RESNET50 = Speedup({2: 1.870, 4: 3.421, 8: 5.598})
LINEAR = Speedup({2: 2.0, 4: 4.0, 8: 8.0})
ANTI = Speedup({2: 0.9, 4: 0.5, 8: 0.2})


class TestSeer(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return Seer()


def rates(speedup: Speedup = RESNET50, **terms: float) -> Rates:
    money = replace(PURSE, budget=1e9, **terms)  # type: ignore[arg-type]
    return Rates(money, tuple((g, speedup(g)) for g in (1, 2, 4)), 6.0)


works = st.lists(
    st.builds(Work, st.integers(1, 64), st.floats(1.0, 2000.0)), min_size=1, max_size=4
)


@given(works=works, slack=st.floats(1.0, 5.0), shape=st.sampled_from([RESNET50, LINEAR, ANTI]))
def test_the_inner_programme_keeps_the_time(
    works: list[Work], slack: float, shape: Speedup
) -> None:
    means = rates(shape)
    fastest = schedule([options(work, means)[0] for work in works], means).seconds
    plan = cheapest(works, means, slack * fastest)
    assert plan is not None and plan.seconds <= slack * fastest + 1e-6
    later = cheapest(works, means, 2 * slack * fastest)
    assert later is not None and later.cost <= plan.cost * 1.1, "more time is not dearer"
    assert cheapest(works, means, 0.5) is None


@given(work=st.builds(Work, st.integers(1, 9), st.floats(50.0, 500.0)))
def test_the_inner_programme_finds_what_trying_all_finds(work: Work) -> None:
    works = [work, Work(max(1, work.trials // 3), 2 * work.seconds)]
    means = rates(startup=0.0, minimum=0.0, offer=12)
    choices = [options(one, means) for one in works]
    time = 1.5 * schedule([found[0] for found in choices], means).seconds
    every = [schedule((a, b), means) for a in choices[0] for b in choices[1]]
    best = min(plan.cost for plan in every if plan.seconds <= time)
    plan = cheapest(works, means, time)
    assert plan is not None and best - 1e-6 <= plan.cost <= 1.1 * best


def test_gangs_that_are_slower_are_never_bought() -> None:
    plan = cheapest([Work(8, 100.0), Work(1, 500.0)], rates(ANTI), 1200.0)
    assert plan is not None and {option.gang for option in plan.rounds} == {1}


def test_a_node_that_is_held_costs_no_start_up() -> None:
    option = Option(1, 2, 1, 100.0, 0.0)
    fresh = schedule([option], rates())
    held = schedule([option], replace(rates(), held=2))
    assert fresh.seconds == held.seconds + 60
    assert fresh.cost == pytest.approx(held.cost + 60 * 8)


@pytest.mark.parametrize(("times", "least"), [(1.2, 2.06), (1.5, 1.36), (2.0, 1.03), (4.0, 1.0)])
def test_rubberband_saves_where_the_deadline_is_tight(times: float, least: float) -> None:
    money = Money(1e9, 0.0, 1.0, startup=60.0, node=4, offer=512)
    job, means = Job(64, 4, 508, 2, 10.0), rates_for(money, RESNET50)
    time = times * fastest_seconds(job, means)
    static, elastic = plan_static(job, means, time), plan_elastic(job, means, time)
    assert static is not None and elastic is not None
    assert max(static.seconds, elastic.seconds) <= time
    assert static.cost / elastic.cost >= least


def test_linear_scaling_without_a_start_up_leaves_nothing_to_save() -> None:
    money = Money(1e9, 0.0, 1.0, granularity=0.0, node=1, offer=64)
    job = Job(64, 4, 508, 2, 10.0)
    means = rates_for(money, Speedup({2**k: 2.0**k for k in range(7)}))
    static, elastic = plan_static(job, means, 2000.0), plan_elastic(job, means, 2000.0)
    assert static is not None and elastic is not None
    assert static.cost == pytest.approx(elastic.cost)


def test_a_shape_is_worth_more_with_more_trials_and_more_training() -> None:
    steps = (4, 16, 64)
    assert expected_best((64, 16, 4), steps, 64) > expected_best((16, 4, 1), steps, 64)
    assert expected_best((16, 4, 1), steps, 64) > expected_best((16, 4, 1), (1, 4, 16), 64)
    assert expected_best((1, 1, 1), steps, 64) == pytest.approx(0.0, abs=0.2)


def trial(number: int, steps: int, score: float, state: str = "running") -> TrialView:
    reports = tuple(Report(i, score, 10.0 * i) for i in range(1, steps + 1))
    slots = 1 if state == "running" else 0
    return TrialView(number, state, slots, reports, horizon=64, step_seconds=10.0)


def snapshot(*trials: TrialView, now: float = 100.0, **more: object) -> Snapshot:
    view = Snapshot(
        now=now, started=0.0, deadline=900.0, capacity=8, largest_gang=4, trials=trials,
        speedup=RESNET50, overhead=Overhead(5.0, 1.0), money=replace(PURSE, spent=800.0, held=8),
    )  # fmt: skip
    return replace(view, **more)  # type: ignore[arg-type]


def test_it_begins_with_an_even_pool() -> None:
    plan = Seer().plan(snapshot(now=0.0, capacity=0, money=PURSE))
    assert plan.pool_slots == 8 and plan.gate_open and plan.slots == 0


def test_a_round_ends_and_its_losers_are_retired() -> None:
    trials = [trial(n, 1, n / 40) for n in range(40)]
    late = snapshot(*trials, now=700.0, money=replace(PURSE, spent=5600.0, held=8))
    plan = Seer().plan(late)
    retired = [n for n, order in plan.orders.items() if isinstance(order, Retire)]
    runs = [n for n, order in plan.orders.items() if isinstance(order, Run)]
    assert len(retired) >= 20 and max(retired) < min(runs)
    after = [replace(t, state="retired", slots=0) if t.number in retired else t for t in trials]
    again = Seer().plan(replace(late, trials=tuple(after)))
    assert not any(isinstance(order, Retire) for order in again.orders.values())
    assert again.start == 0 and not again.gate_open


def test_the_end_of_a_round_compares_no_trial_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = [trial(n, 1, n / 40) for n in range(40)]
    compared = [0]

    def counted(one: TrialView, other: object) -> bool:
        compared[0] += 1
        return one is other

    monkeypatch.setattr(TrialView, "__eq__", counted)
    money = replace(PURSE, spent=5600.0, held=8)
    plan = Seer().plan(snapshot(*trials, now=700.0, money=money))
    assert any(isinstance(order, Retire) for order in plan.orders.values())
    assert compared[0] <= len(trials)


def test_a_round_does_not_wait_for_its_slowest() -> None:
    others = [trial(n, 1, 0.1, "retired") for n in range(20)]
    through = [trial(n, 4, 0.5 + n / 100) for n in range(20, 25)]
    slow = trial(30, 2, 0.4)
    waits = Seer().plan(snapshot(*others, *through, slow))
    assert isinstance(waits.orders[30], Run)
    slower = replace(slow, reports=(slow.reports[0], Report(2, 0.4, 60.0)), step_seconds=50.0)
    ended = Seer().plan(snapshot(*others, *through, slower))
    assert isinstance(ended.orders[30], Retire)


def test_nodes_that_nobody_needs_are_given_back_at_once() -> None:
    others = [trial(n, 16, 0.1, "retired") for n in range(20)]
    plan = Seer().plan(snapshot(*others, trial(30, 20, 0.9), capacity=16, now=500.0,
                                money=replace(PURSE, spent=2000.0, held=16)))  # fmt: skip
    assert plan.pool_slots == 4
    assert isinstance(plan.orders[30], Run)


def test_without_money_the_pool_is_what_it_is() -> None:
    plan = Seer().plan(snapshot(money=None))
    assert plan.pool_slots is None and plan.start == 8


def test_what_is_over_ends() -> None:
    done = [trial(n, 64, 0.5, "complete") for n in range(2)]
    lost = [trial(n, 16, 0.5, "retired") for n in range(2, 9)]
    plan = Seer().plan(snapshot(*done, *lost))
    assert plan.pool_slots == 0 and not plan.gate_open and plan.slots == 0
    assert isinstance(Seer().plan(snapshot(trial(0, 3, 0.1), now=900.0)).orders[0], Pause)


def test_a_pool_that_is_to_grow_leaves_the_round_as_it_is() -> None:
    """Found by hypothesis: with the nodes that it had asked for, the next plan began anew."""
    seen = tuple(Report(step, 0.0, 1.0 + step) for step in range(3))
    view = Snapshot(
        now=100.0,
        started=0.0,
        deadline=211.0,
        capacity=2,
        largest_gang=2,
        trials=(TrialView(0, "running", 1, seen, step_seconds=0.5),),
        overhead=Overhead(startup=4.0, stop=0.5),
        money=Money(190.0, 95.0, 0.1, granularity=60.0, node=2, offer=10, held=2),
    )
    plan = Seer().plan(view)
    assert plan.pool_slots is not None and plan.pool_slots > 2
    after = carried_out(view, plan)
    again = Seer().plan(after)
    assert again.pool_slots == plan.pool_slots and not again.start
    assert {number: type(order) for number, order in again.orders.items()} == {
        trial.number: Run if trial.slots else Pause for trial in after.trials
    }


def test_who_ended_by_itself_counts_at_every_barrier() -> None:
    """Found by hypothesis: two barriers in one plan forgot it, and the next plan did not."""
    worst = -math.inf
    waits = tuple(
        Report(step, score, 1.0 + step)
        for step, score in enumerate((worst, 0.0, worst, 0.0, worst))
    )
    view = Snapshot(
        now=100.0,
        started=0.0,
        deadline=101.0,
        capacity=1,
        largest_gang=1,
        trials=(
            TrialView(0, "paused", 0, waits),
            TrialView(1, "complete", 0, waits[1:2]),
            TrialView(2, "running", 1, waits[1:3], step_seconds=0.5),
        ),
        overhead=Overhead(startup=1.0, stop=0.5),
    )
    after = carried_out(view, Seer().plan(view))
    orders = Seer().plan(after).orders
    assert all(isinstance(orders[trial.number], Pause) for trial in after.trials if trial.alive)


@pytest.mark.parametrize(("count", "exhausted"), [(3, False), (None, True)])
def test_a_round_waits_for_no_trial_that_cannot_come(count: int | None, exhausted: bool) -> None:
    """The search space, or the number of trials, ends before a round is full."""
    policy = Seer(max_resource=64, n_trials=count)
    first = replace(snapshot(now=0.0), exhausted=exhausted, capacity=8)
    assert policy.plan(first).start == (count or 0)
    three = [trial(number, 4, 0.1 * number) for number in range(3)]
    plan = policy.plan(replace(snapshot(*three, now=50.0), exhausted=exhausted))
    assert not plan.start and not plan.gate_open
    assert any(isinstance(order, Run) for order in plan.orders.values())


def test_a_trial_that_diverged_ends_no_round() -> None:
    trials = [trial(number, 1, 0.1 * number) for number in range(4)]
    diverged = replace(trial(4, 3, -math.inf, "retired"))
    view = snapshot(*trials, diverged, now=50.0)
    whole = Seer().plan(snapshot(*trials, now=50.0))
    assert whole.gate_open and Seer().plan(view).gate_open
