"""Hermes and the time-sharing baselines: what every policy promises, and the idea of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from turns import served, snapshot, trial

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import Policy, Report, Run, TrialView, make_policy
from optuna_deadline.policies.baselines.time_sharing import RoundRobin
from optuna_deadline.policies.hermes import SIGNALS, Hermes, read_signals
from optuna_deadline.testing.policies import PolicyTestCase


class TestHermes(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return Hermes()


class TestHermesOfFewTrials(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return Hermes(open_per_slot=1, n_trials=6, quantum=5.0, signal="relative_slope")


class TestRoundRobin(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return RoundRobin(quantum=10.0)


#: Two that rise quickly, four that do not.
CURVES = [[0.1, 0.11], [0.1, 0.6], [0.1, 0.12], [0.1, 0.13], [0.1, 0.5], [0.1, 0.1]]


@pytest.mark.parametrize("signal", sorted(SIGNALS.keys() - {"relative_slope"}))
@pytest.mark.parametrize("paused", [(0, 2), (1, 4), (3, 5)])
def test_hermes_serves_who_converges_fastest(signal: str, paused: tuple[int, int]) -> None:
    trials = [
        trial(n, scores, "paused" if n in paused else "running", changed=490.0)
        for n, scores in enumerate(CURVES)
    ]
    view = snapshot(*trials, slots=2)
    assert served(Hermes(signal=signal, n_trials=6), view) == {1, 4}


def test_hermes_preempts_nobody_within_a_turn_or_its_warm_up() -> None:
    rising = [trial(n, [0.1, 0.2, 0.9 + n / 100], "paused", 480.0) for n in range(2)]
    resumed = replace(trial(2, [0.1, 0.1, 0.1]), changed=498.0)
    begun = TrialView(3, "running", 1, (Report(1, 0.1, 1.0),), 499.0, 100, 1.0)
    policy = Hermes(n_trials=4)
    assert served(policy, snapshot(*rising, resumed, begun, slots=2)) == {2, 3}
    later = replace(resumed, changed=400.0)
    assert served(policy, snapshot(*rising, later, begun, slots=2)) == {1, 3}


def test_hermes_lets_newcomers_in_but_not_at_the_cost_of_who_stands_out() -> None:
    alike = [trial(n, [0.1, 0.11 + n / 1000]) for n in range(4)]
    plan = Hermes().plan(snapshot(*alike))
    assert plan.start == 3 and isinstance(plan.orders[3], Run)
    outstanding = [*alike[:2], trial(2, [0.1, 0.6]), trial(3, [0.1, 0.7])]
    seen = [trial(n, [0.1, 0.11 + n / 1000], "paused", 499.0) for n in range(4, 9)]
    plan = Hermes().plan(snapshot(*outstanding, *seen))
    assert plan.start == 2
    assert isinstance(plan.orders[2], Run) and isinstance(plan.orders[3], Run)


def test_hermes_gives_a_turn_to_who_has_waited_long() -> None:
    running = trial(0, [0.1, 0.9])
    others = [trial(n, [0.1, 0.1 + n / 10], "paused", 499.0) for n in (1, 2)]
    policy = Hermes(n_trials=3, open_per_slot=2, ageing=5.0)
    assert served(policy, snapshot(running, *others, slots=1)) == {0}
    starved = replace(others[0], changed=100.0)
    assert served(policy, snapshot(running, starved, others[1], slots=1)) == {1}
    # Near the deadline a turn would come to nothing.
    assert served(policy, snapshot(running, starved, others[1], slots=1, left=2.0)) == {0}


def test_hermes_lets_the_last_trials_grow() -> None:
    view = snapshot(trial(0, [0.1] * 9), trial(1, [0.2] * 9), slots=4)
    plan = Hermes(n_trials=2).plan(view)
    assert [plan.orders[n] for n in (0, 1)] == [
        Run(2, "fewer trials than slots: as many as it can use")
    ] * 2
    fresh = snapshot(trial(0, [0.1] * 9, changed=499.0), trial(1, [0.2] * 9), slots=4)
    assert Hermes(n_trials=2).plan(fresh).slots == 2


def test_round_robin_serves_who_has_waited_longest() -> None:
    waiting = [trial(n, [0.1], "paused", changed) for n, changed in [(0, 480), (1, 400), (2, 450)]]
    over, in_turn = trial(3, [0.9] * 9), trial(4, [0.9] * 9, changed=499.0)
    view = snapshot(*waiting, over, in_turn, slots=3)
    assert served(RoundRobin(quantum=10.0, n_trials=5), view) == {1, 2, 4}


def test_gains_count_from_the_lowest_first_report() -> None:
    quick, slow = trial(0, [0.5, 0.6]), trial(1, [0.1, 0.2])
    gains = read_signals([quick, slow], "gain", 2)
    assert gains[0] == pytest.approx(0.5) and gains[1] == pytest.approx(0.1)
    gains = read_signals([quick, slow], "gain", 2, own_origin=True)
    assert gains[0] == pytest.approx(gains[1])


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("hermes", {"signal": "hope"}, "There is no signal 'hope'"),
        ("hermes", {"explore": 0.0}, "explore between 0 and 1"),
        ("round_robin", {"quantum": 0.0}, "quantum must be a number of seconds above 0"),
        ("round_robin", {"open_per_slot": 0}, "open_per_slot must be a whole number from 1"),
        ("fifo", {"n_trials": 0}, "n_trials must be a whole number from 1"),
    ],
)
def test_bad_parameters_are_refused_in_words(
    name: str, parameters: dict[str, object], words: str
) -> None:
    with pytest.raises(DeadlineError, match=words):
        make_policy(name, parameters)
