"""HyperSched's rules, and what must hold of any plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import Overhead, Speedup
from optuna_deadline.policies import (
    HyperSched,
    Pause,
    Policy,
    Report,
    Retire,
    Run,
    Snapshot,
    TrialView,
)
from optuna_deadline.policies.gang_sizes import ALLOCATORS
from optuna_deadline.testing.policies import PolicyTestCase, snapshots

POLICY = HyperSched()
LINEAR = Speedup({2: 2.0, 4: 4.0, 8: 8.0})


def trial(
    number: int, scores: list[float], state: str = "running", slots: int = 1, seconds: float = 1.0
) -> TrialView:
    reports = tuple(Report(i, score, (i + 1) * seconds) for i, score in enumerate(scores))
    return TrialView(
        number, state, slots if state == "running" else 0, reports,
        horizon=80, step_seconds=seconds if scores else None,
    )  # fmt: skip


def snapshot(*trials: TrialView, left: float = 1000.0, slots: int = 8, **more: object) -> Snapshot:
    return Snapshot(
        now=100.0, started=0.0, deadline=100.0 + left, capacity=slots, largest_gang=slots,
        trials=trials, **more,  # type: ignore[arg-type]
    )  # fmt: skip


class TestConformance(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return POLICY


@given(snapshots())
def test_a_slot_idles_only_where_nobody_could_use_it(view: Snapshot) -> None:
    plan = POLICY.plan(view)
    idle = view.capacity - plan.slots
    held_back = any("later" in order.reason for order in plan.orders.values())
    if idle and not held_back:
        assert not plan.gate_open
        waiting = [o for o in plan.orders.values() if isinstance(o, Pause)]
        assert not waiting, waiting


def test_exploration_puts_one_new_trial_on_each_slot() -> None:
    assert POLICY.plan(snapshot()).start == 8


def test_a_trial_that_passed_is_paused_when_the_cut_has_risen() -> None:
    early, late = trial(0, [0.5, 0.5, 0.95]), trial(1, [0.7, 0.7])
    plan = POLICY.plan(snapshot(early, late))
    assert isinstance(plan.orders[0], Pause) and "rung 1" in plan.orders[0].reason
    assert plan.orders[1] == Run(1, "keeps 1: exploring on single slots")


def test_a_paused_trial_comes_back_when_it_stands_above_the_cut() -> None:
    paused = trial(0, [0.5, 0.5], "paused")
    others = [trial(n, [0.1, 0.1], "retired") for n in range(1, 5)]
    plan = POLICY.plan(snapshot(paused, *others, slots=1))
    assert isinstance(plan.orders[0], Run) and plan.start == 0


def test_promotion_goes_from_the_top_rung_down() -> None:
    high = trial(0, [0.1] * 6, "paused")
    low = trial(1, [0.9, 0.9], "paused")
    others = [trial(n, [0.0, 0.0], "retired") for n in range(2, 10)]
    plan = POLICY.plan(snapshot(high, low, *others, slots=1))
    assert isinstance(plan.orders[0], Run) and isinstance(plan.orders[1], Pause)


def test_the_gate_closes_when_newcomers_cannot_catch_up() -> None:
    running = trial(0, [0.5] * 10)
    assert POLICY.plan(snapshot(running, left=41)).gate_open  # 10 s trained, factor 4
    assert not POLICY.plan(snapshot(running, left=39)).gate_open


def test_the_gate_asks_for_no_more_than_a_whole_training() -> None:
    running = trial(0, [0.5] * 60)  # 60 s trained: times 4 is more than 80 steps of 1 s
    assert POLICY.plan(snapshot(running, left=81)).gate_open
    assert not POLICY.plan(snapshot(running, left=79)).gate_open


def test_the_gate_opens_again_when_the_survivors_are_lost() -> None:
    lost = trial(0, [0.5] * 10, "failed")
    plan = POLICY.plan(snapshot(lost, left=39))
    assert plan.gate_open and plan.start == 8


def test_survivors_share_the_pool_in_score_order() -> None:
    trials = [trial(0, [0.9] * 8), trial(1, [0.9] * 7 + [0.8]), trial(2, [0.9] * 7 + [0.3])]
    plan = POLICY.plan(snapshot(*trials, left=20, speedup=LINEAR))
    shares = [order.slots for order in plan.orders.values() if isinstance(order, Run)]
    assert shares == [3, 3, 2]  # as HyperSched's own code deals 8 among .9, .8 and .3


@pytest.mark.parametrize(("overhead", "grows"), [(1.0, True), (8.0, False)])
def test_a_gang_grows_only_where_the_gain_outweighs_the_restart(
    overhead: float, grows: bool
) -> None:
    view = snapshot(
        trial(0, [0.9] * 8), left=18, slots=2, overhead=Overhead(overhead, 0.0), speedup=Speedup()
    )
    order = POLICY.plan(view).orders[0]
    assert isinstance(order, Run) and order.slots == (2 if grows else 1)
    assert ("gain" in order.reason) is True


def test_a_gang_that_does_not_pay_is_dissolved_for_those_that_wait() -> None:
    winner = trial(0, [0.9] * 8, slots=2)
    waiting = trial(1, [0.1] * 3, "paused")
    plan = POLICY.plan(snapshot(winner, waiting, left=18, slots=2, speedup=Speedup({2: 0.9})))
    assert plan.orders[0] == Run(1, "shrinks 2 -> 1: its share of the pool")
    kept = POLICY.plan(snapshot(winner, waiting, left=18, slots=2, speedup=Speedup({2: 1.9})))
    assert kept.orders[0] == Run(2, "keeps 2: its share of the pool")
    assert isinstance(plan.orders[1], Run)


def test_a_gang_shrinks_for_one_that_grows_and_for_nobody_else() -> None:
    large, small = trial(0, [0.9] * 8, slots=3), trial(1, [0.9] * 7 + [0.8])
    held = replace(small, changed=99.0)
    for newcomer, sizes in ((small, [2, 2]), (held, [3, 1])):
        plan = POLICY.plan(snapshot(large, newcomer, left=20, slots=4, speedup=LINEAR))
        assert [o.slots for o in plan.orders.values() if isinstance(o, Run)] == sizes


def test_a_trial_without_a_report_ranks_worst() -> None:
    fresh = TrialView(1, "running", 1)
    plan = POLICY.plan(snapshot(trial(0, [0.1] * 8), fresh, left=20, slots=5, speedup=LINEAR))
    assert [plan.orders[0], plan.orders[1]] == [
        Run(3, plan.orders[0].reason),
        Run(2, plan.orders[1].reason),
    ]


def test_only_so_many_paused_trials_are_kept() -> None:
    paused = [trial(n, [n / 100, n / 100], "paused") for n in range(60)]
    leader = trial(99, [0.99] * 8)
    plan = POLICY.plan(snapshot(leader, *paused, left=20, slots=2))
    retired = [number for number, order in plan.orders.items() if isinstance(order, Retire)]
    assert len(retired) > 40 and max(retired) < 59


def heirs(steps: int = 20) -> list[TrialView]:
    """The winners are done; eight that they beat wait at the same rung."""
    done = [trial(90 + n, [0.9] * 60, "complete") for n in range(8)]
    return [*done, *(trial(n, [n / 100] * steps, "paused") for n in range(8))]


@pytest.mark.parametrize(("steps", "shares"), [(60, {7: 2, 6: 2}), (20, {7: 4})])
def test_the_best_of_the_rest_take_the_pool_of_survivors_that_ended(
    steps: int, shares: dict[int, int]
) -> None:
    """A quarter of those that are left; the best alone where no rung would part them in time."""
    view = snapshot(*heirs(steps), left=12, slots=4, speedup=LINEAR)
    plan = POLICY.plan(view)
    sizes = {n: order.slots for n, order in plan.orders.items() if isinstance(order, Run)}
    assert not plan.gate_open and sizes == shares
    carried_out = [
        replace(trial, state="running", slots=shares[trial.number])
        if trial.number in shares
        else trial
        for trial in view.trials
    ]
    again = POLICY.plan(replace(view, now=view.now + 1, trials=tuple(carried_out)))
    assert {n: o.slots for n, o in again.orders.items() if isinstance(o, Run)} == shares


def test_the_last_of_the_rest_holds_the_pool() -> None:
    rest = [view for view in heirs() if view.number >= 90 or view.number == 3]
    plan = POLICY.plan(snapshot(*rest, left=12, slots=4, speedup=LINEAR))
    assert isinstance(plan.orders[3], Run) and plan.orders[3].slots == 4


def test_newcomers_come_again_where_the_whole_pool_could_still_train_one() -> None:
    # 80 steps of 1 s on eight slots, a first report and its start-up.
    for left, is_open in ((13.0, True), (11.0, False)):
        plan = POLICY.plan(snapshot(*heirs(), left=left, speedup=LINEAR))
        assert plan.gate_open is is_open


@pytest.mark.parametrize(
    ("allocator", "shares"),
    [("uniform", [3, 3, 2]), ("top_job", [6, 1, 1]), ("softmax", [4, 2, 2])],
)
def test_allocators_deal_as_hyperscheds_own_code_deals(allocator: str, shares: list[int]) -> None:
    deal = ALLOCATORS[allocator]
    assert deal([0.9, 0.8, 0.3], range(1, 9), 8) == shares


@given(
    st.sampled_from(sorted(ALLOCATORS)),
    st.lists(st.one_of(st.floats(-5, 5), st.just(-math.inf)), min_size=1, max_size=8),
    st.sets(st.integers(2, 8)),
    st.integers(0, 8),
)
def test_an_allocator_deals_useful_sizes_and_no_more_than_there_is(
    allocator: str, scores: list[float], sizes: set[int], more: int
) -> None:
    useful = sorted({1, *sizes})
    shares = ALLOCATORS[allocator](sorted(scores, reverse=True), useful, len(scores) + more)
    assert sum(shares) <= len(scores) + more and set(shares) <= set(useful)
    assert len(shares) == len(scores)


def test_an_unknown_allocator_is_refused_in_words() -> None:
    with pytest.raises(DeadlineError, match=r"softmax, top_job, uniform.*'fair'"):
        HyperSched(allocator="fair")


def test_parts_can_be_left_out() -> None:
    late = trial(0, [0.5] * 10)
    assert HyperSched(gate=False).plan(snapshot(late, left=39)).gate_open
    early, other = trial(0, [0.5, 0.5, 0.95]), trial(1, [0.7, 0.7])
    plan = HyperSched(retroactive=False).plan(snapshot(early, other))
    assert isinstance(plan.orders[0], Run)
    view = snapshot(
        trial(0, [0.9] * 8), left=18, slots=2, overhead=Overhead(8.0, 0.0), speedup=Speedup()
    )
    order = HyperSched(weigh_overhead=False).plan(view).orders[0]
    assert isinstance(order, Run) and order.slots == 2


class TestWithoutItsParts(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return HyperSched(allocator="top_job", gate=False, retroactive=False, weigh_overhead=False)
