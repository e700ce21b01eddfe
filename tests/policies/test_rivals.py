"""The rivals of the benchmarks pass the suite of policies, loaded as users load their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from turns import served, snapshot, trial

from benchmarks.rivals import make_policy
from benchmarks.rivals.slaq import fit_decay
from optuna_deadline.policies import Policy
from optuna_deadline.testing.policies import PolicyTestCase


class TestOneEpoch(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return make_policy("one_epoch", {})


class TestNaiveElastic(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return make_policy("naive_elastic", {"max_resource": 16})


class TestLeastAttainedService(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return make_policy("least_attained_service", {"quantum": 1.0})


class TestSlaq(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return make_policy("slaq", {})


def test_one_epoch_trains_the_best_when_time_runs_out() -> None:
    rung = [trial(n, [0.1 * n], "paused") for n in range(6)]
    policy = make_policy("one_epoch", {})
    assert policy.plan(snapshot(*rung, left=1000)).start == 4
    view = snapshot(*rung, left=60)
    assert served(policy, view) == {2, 3, 4, 5} and policy.plan(view).start == 0


def test_least_attained_service_prefers_the_first_queue_and_lifts_the_starved() -> None:
    policy = make_policy("least_attained_service", {"quantum": 2.0, "n_trials": 1})
    old, young = trial(0, [0.9] * 40), trial(1, [0.1] * 3, "paused", 499.0)
    starved = trial(2, [0.1] * 40, "paused", 499.0)
    assert served(policy, snapshot(old, young, starved, slots=1)) == {1}
    assert served(policy, snapshot(old, starved, slots=1)) == {0}
    lifted = replace(starved, changed=100.0)
    assert served(policy, snapshot(old, lifted, slots=1)) == {2}


def test_slaq_serves_the_trial_whose_loss_falls_most() -> None:
    flat = trial(0, [1 - 1 / (k * k + 1) for k in range(1, 30)])
    falling = trial(1, [1 - 1 / (0.02 * k + 1) for k in range(1, 30)], "paused", 499.0)
    policy = make_policy("slaq", {"quantum": 3.0, "n_trials": 2})
    assert served(policy, snapshot(flat, falling, slots=1)) == {1}


def test_a_decay_is_found_again() -> None:
    steps = list(range(1, 40))
    fit = fit_decay(steps, [1 / (0.3 * k + 1) + 0.2 for k in steps], memory=10.0)
    assert fit is not None
    assert fit(60) == pytest.approx(1 / 19 + 0.2, abs=0.01)
    assert fit_decay([1, 2, 3], [0.5, 0.5, 0.5], memory=10.0) is None
