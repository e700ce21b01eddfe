"""One figure of each paper's system, small and with fixed seeds: what a change of it would move.

The figures follow from the code alone, so they hold to 1 % on every machine. After an intended
change of a policy, run ``python -m benchmarks.headlines`` and state the new figure here.
"""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks import sweep
from benchmarks.cluster.shares import Shares
from benchmarks.cluster.window import WindowScheduler
from benchmarks.headlines import hermes_study, hypersched_runs, seer
from benchmarks.headlines.job_traces import generate_trace
from benchmarks.headlines.trace_replay import replay
from benchmarks.rivals.schedulers import MaxMinFair

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but("seer_has|hermes_finds|max_min")]


def holds(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def test_hypersched_is_more_accurate_than_asha_by_a_short_deadline() -> None:
    ours, asha = (
        fmean(
            hypersched_runs.run(hypersched_runs.Case(policy, "climbing", seed, 900.0)).score
            for seed in range(8)
        )
        for policy in ("hypersched", "asha_promote")
    )
    assert (ours, asha) == (holds(0.8561), holds(0.8346))


def test_seer_has_less_regret_than_a_fixed_cluster_for_the_same_money() -> None:
    setting = seer.Setting(900.0, 8)
    ours, fixed = (seer.run((setting, policy, 1)) for policy in ("seer", "successive_halving"))
    assert (ours.regret, fixed.regret) == (holds(0.02340), holds(0.02650))
    assert ours.overspent == 0


def test_hermes_finds_a_good_configuration_sooner_than_first_come() -> None:
    ours, first = (
        hermes_study.run(hermes_study.Case(policy, "quick", 1, 0.1, 1)).epochs
        for policy in ("hermes", "fifo")
    )
    assert (ours, first / ours) == (holds(79.0), holds(9.04))


def test_shockwave_has_a_shorter_makespan_and_a_lower_rho_than_max_min() -> None:
    trace = generate_trace(1, jobs=60, gpus=16)
    ours, fair = replay(trace, WindowScheduler()), replay(trace, Shares(MaxMinFair()))
    assert (fair.makespan / ours.makespan, ours.worst_rho) == (holds(1.223), holds(1.230))
    assert ours.worst_rho < fair.worst_rho


def test_shockwaves_trainings_end_together_and_none_is_late() -> None:
    found = sweep.Case("unlike", 0, "Shockwave", None).run()
    assert (found.makespan / found.bound, found.rho) == (holds(1.031), holds(1.188))
