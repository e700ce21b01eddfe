"""No trial starts that could not report twice before the deadline."""

from __future__ import annotations

import pytest

from optuna_deadline.forecasting.throughput import Overhead
from optuna_deadline.planning.sampling import FiniteSearchPolicy
from optuna_deadline.policies.api import Report, Snapshot, TrialView
from optuna_deadline.policies.registry import make_policy


def study(now: float) -> Snapshot:
    """One trial that reports each two seconds, and paused ones; a start takes three seconds."""
    reports = tuple(Report(step, 0.1 * step, 2.0 * step) for step in range(1, 6))
    trials = tuple(
        TrialView(number, "paused", reports=reports, step_seconds=2.0) for number in range(3)
    )
    return Snapshot(now, 0.0, 100.0, 4, 4, trials, overhead=Overhead(startup=3.0, stop=1.0))


@pytest.mark.parametrize("name", ["fifo", "asha", "hypersched", "adaptive_halving"])
def test_nothing_starts_that_cannot_report_twice(name: str) -> None:
    policy = FiniteSearchPolicy(make_policy(name, {}), lambda: False)
    assert policy.plan(study(94.0)).start == 0
    assert not policy.plan(study(94.0)).gate_open


def test_what_can_report_twice_may_start() -> None:
    policy = FiniteSearchPolicy(make_policy("fifo", {}), lambda: False)
    assert policy.plan(study(92.0)).start == 1


def test_the_first_trials_start_whatever_the_time() -> None:
    policy = FiniteSearchPolicy(make_policy("fifo", {}), lambda: False)
    assert policy.plan(Snapshot(99.0, 0.0, 100.0, 4, 4)).start == 4
