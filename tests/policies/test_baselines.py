"""The baselines pass the suite of policies and decide as their sources do."""

from __future__ import annotations

from statistics import median

import pytest
from growth import instructions
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.policies import (
    Pause,
    Policy,
    Report,
    Retire,
    Run,
    Snapshot,
    TrialView,
    make_policy,
)
from optuna_deadline.policies.api import WORST
from optuna_deadline.policies.baselines.fifo import Fifo
from optuna_deadline.policies.baselines.halving import (
    Asha,
    AshaPromote,
    Hyperband,
    SuccessiveHalving,
)
from optuna_deadline.policies.baselines.stopping import Median
from optuna_deadline.testing.policies import PolicyTestCase


def trial(number: int, scores: list[float], state: str = "running") -> TrialView:
    """A trial with a report after each step from 1 on."""
    reports = tuple(Report(i, score, float(i)) for i, score in enumerate(scores, 1))
    slots = 1 if state == "running" else 0
    seconds = 1.0 if scores else None
    return TrialView(number, state, slots, reports, horizon=64, step_seconds=seconds)


def snapshot(*trials: TrialView, left: float = 1000.0, slots: int = 4) -> Snapshot:
    return Snapshot(
        now=100.0, started=0.0, deadline=100.0 + left, capacity=slots, largest_gang=slots,
        trials=trials,
    )  # fmt: skip


class TestFifo(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return Fifo()


class TestAsha(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return Asha()


class TestAshaPromote(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return AshaPromote()


class TestAshaPromoteOfFewTrials(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return AshaPromote(reduction_factor=2, n_trials=8)


class TestMedian(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return Median()


class TestSuccessiveHalving(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return SuccessiveHalving(reduction_factor=2, cohort=4)


class TestHyperband(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return Hyperband(reduction_factor=2)


@pytest.mark.parametrize(
    "name", ["fifo", "asha", "asha_promote", "median", "successive_halving", "hyperband"]
)
def test_policies_come_by_name_with_the_same_parameters(name: str) -> None:
    policy = make_policy(name, {"min_resource": 1, "max_resource": 9, "reduction_factor": 3})
    assert policy.plan(snapshot()).start == 4


def test_fifo_lets_a_bad_trial_go_on() -> None:
    plan = Fifo().plan(snapshot(trial(0, [0.1] * 9), *[trial(n, [0.9]) for n in range(1, 4)]))
    assert plan.orders[0] == Run(1, "its turn") and plan.start == 0


def test_asha_gives_up_who_comes_to_a_rung_below_its_cut() -> None:
    peers = [trial(n, [0.5, 0.6], "paused") for n in range(1, 5)]
    plan = Asha().plan(snapshot(trial(0, [0.1]), *peers))
    assert isinstance(plan.orders[0], Retire)
    passed_long_ago = trial(0, [0.1, 0.2])
    assert isinstance(Asha().plan(snapshot(passed_long_ago, *peers)).orders[0], Run)


def test_asha_promotes_one_in_four_and_pauses_the_others() -> None:
    policy, rung = AshaPromote(), [trial(n, [0.1 * n], "paused") for n in range(3)]
    assert policy.plan(snapshot(*rung)).start == 4
    plan = policy.plan(snapshot(*rung, trial(3, [0.05])))
    assert isinstance(plan.orders[2], Run) and isinstance(plan.orders[3], Pause)
    assert plan.start == 3


def test_asha_thaws_the_best_when_nothing_else_is_to_run() -> None:
    rung = [trial(n, [0.1 * n], "paused") for n in range(3)]
    plan = AshaPromote(n_trials=3).plan(snapshot(*rung, slots=2))
    runs = {number for number, order in plan.orders.items() if isinstance(order, Run)}
    assert runs == {1, 2} and plan.start == 0 and not plan.gate_open


def test_the_median_rule_spares_the_better_half() -> None:
    peers = [trial(n, [0.4, 0.5, 0.6], "paused") for n in range(2, 5)]
    plan = Median().plan(snapshot(trial(0, [0.1, 0.2]), trial(1, [0.5, 0.5]), *peers))
    assert isinstance(plan.orders[0], Retire) and isinstance(plan.orders[1], Run)


@given(st.lists(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, WORST]), max_size=5), max_size=9))
def test_the_median_rule_is_the_one_of_its_definition(curves: list[list[float]]) -> None:
    trials = [trial(number, curve) for number, curve in enumerate(curves)]
    orders = Median(min_resource=2).plan(snapshot(*trials)).orders
    for number, mine in enumerate(curves):
        others = [curve for other, curve in enumerate(curves) if other != number]
        step = len(mine)
        means = [sum(curve[:step]) / step for curve in others if step and len(curve) >= step]
        given_up = step >= 2 and len(means) >= 3 and max(mine) < median(means)
        assert isinstance(orders[number], Retire) == given_up


def test_halving_in_step_waits_for_the_last_one() -> None:
    policy = SuccessiveHalving(cohort=4)
    rung = [trial(n, [0.1 * n], "paused") for n in range(3)]
    plan = policy.plan(snapshot(*rung, trial(3, [])))
    assert isinstance(plan.orders[3], Run) and plan.start == 0
    assert all(isinstance(plan.orders[n], Pause) for n in range(3))
    plan = policy.plan(snapshot(*rung, trial(3, [0.05])))
    assert isinstance(plan.orders[2], Run)
    assert all(isinstance(plan.orders[n], Retire) for n in (0, 1, 3))


def test_hyperband_begins_every_bracket_early() -> None:
    pattern = Hyperband(reduction_factor=4)._pattern(64)
    assert [pattern.count(bracket) for bracket in range(4)] == [64, 22, 8, 4]
    assert set(pattern[:16]) == {0, 1, 2, 3}


def test_hyperbands_brackets_are_laid_out_once_however_long_a_training_is() -> None:
    policy = Hyperband(reduction_factor=5)
    first, second = (instructions(lambda: policy._pattern(5**5)) for _ in range(2))
    assert second < first / 10, (first, second)
