"""Which work has to be done: all trials of a policy that ends none, if they are counted."""

from __future__ import annotations

import pytest

from optuna_deadline.planning.demand import work_to_do
from optuna_deadline.policies.api import Overhead, Report, Snapshot, TrialView
from optuna_deadline.policies.registry import make_policy


def snapshot(*trials: TrialView, exhausted: bool = False) -> Snapshot:
    """A study of four slots; a start takes 3 s, a stop 1 s."""
    return Snapshot(
        0.0, 0.0, 1000.0, 4, 4, trials, overhead=Overhead(3.0, 1.0), exhausted=exhausted
    )


def trial(
    number: int, step: int, state: str = "running", seconds: float | None = 2.0
) -> TrialView:
    """A trial of ten steps."""
    reports = [Report(step, 2.0 * step, 0.5)] if step else []
    return TrialView(number, state, 1, reports, horizon=10, step_seconds=seconds)


@pytest.mark.parametrize("policy", ["fifo", "round_robin", "shockwave"])
def test_it_is_what_open_and_unopened_trials_still_train(policy: str) -> None:
    made = make_policy(policy, {"n_trials": 4})
    seen = snapshot(trial(0, 10, "complete"), trial(1, 4), trial(2, 0, "ready", None))
    assert work_to_do(made, seen) == pytest.approx((12.0 + 20.0 + 20.0, 20.0))
    last = snapshot(*(trial(n, 10, "complete") for n in range(3)), trial(3, 4))
    assert work_to_do(made, last) == pytest.approx((12.0, 12.0))


def test_a_search_that_is_exhausted_is_counted() -> None:
    made = make_policy("fifo", {})
    assert work_to_do(made, snapshot(trial(0, 4), exhausted=True))[0] == pytest.approx(12.0)


def test_a_search_has_none() -> None:
    seen = snapshot(trial(0, 4))
    assert work_to_do(make_policy("fifo", {}), seen) == (None, 0.0), "its trials are not counted"
    for policy in ("adaptive_halving", "hypersched", "hermes", "asha", "median"):
        made = make_policy(policy, {"n_trials": 4})
        assert work_to_do(made, seen) == (None, 0.0), "it ends trials"
    finished = make_policy("adaptive_halving", {"n_trials": 4, "finish": True})
    assert work_to_do(finished, seen)[0] == pytest.approx(12.0 + 3 * 20.0)
    counted = make_policy("fifo", {"n_trials": 4})
    assert work_to_do(counted, snapshot(trial(0, 0, "ready", None))) == (0.0, 0.0), "no pace yet"
