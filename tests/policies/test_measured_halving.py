"""The rule that gives trials up by rungs, rises and the clock."""

from __future__ import annotations

import math

import pytest

from optuna_deadline.policies.api import Report, TrialView
from optuna_deadline.policies.measured_halving import Rungs, TimeLeft

AMPLE = TimeLeft(reports=1000.0)


def study(curves: list[list[float]]) -> Rungs:
    rungs = Rungs()
    for number, scores in enumerate(curves):
        train(rungs, number, scores)
    return rungs


def train(rungs: Rungs, number: int, scores: list[float], state: str = "running") -> None:
    """Let a trial report the scores."""
    reports = tuple(Report(step, score, float(step)) for step, score in enumerate(scores, 1))
    rungs.take(TrialView(number, state, 1, reports))


def test_rungs_lie_at_powers_of_two() -> None:
    rungs = study([[float(number)] * 8 for number in range(8)])
    assert rungs.judge(0, 0, AMPLE) is None
    found = [rungs.judge(0, reports, AMPLE) for reports in (1, 2, 3, 4, 7, 8)]
    assert [one.rung for one in found if one] == [1, 2, 2, 4, 4, 8]


def test_before_anything_is_measured_half_of_a_rung_goes_on() -> None:
    rungs = study([[float(number)] for number in range(8)])
    given_up = [number for number in range(8) if rungs.judge(number, 1, AMPLE)]
    assert given_up == [0, 1, 2, 3]


def test_what_a_usual_rise_would_bring_to_the_top_goes_on() -> None:
    flat, steep = (study([[n / 100, n / 100 + rise] for n in range(12)]) for rise in (0.0, 1.0))
    for rungs in (flat, steep):
        rungs.record(99, 0, 0.0)
    assert flat.judge(99, 1, AMPLE) is not None
    assert steep.judge(99, 1, AMPLE) is None


def test_where_ranks_mean_nothing_nothing_is_given_up() -> None:
    turning = study([[n / 100, -n / 100] for n in range(30)])
    assert not [n for n in range(30) if turning.judge(n, 1, AMPLE)]


@pytest.mark.parametrize(
    "left",
    [
        TimeLeft(reports=1.0),
        TimeLeft(reports=1000.0, to_start=0),
        TimeLeft(reports=1000.0, horizon=2),
    ],
    ids=["no new one comes as far", "none is left to start", "it has come to its end"],
)
def test_who_cannot_be_replaced_goes_on(left: TimeLeft) -> None:
    rungs = study([[float(number), float(number)] for number in range(8)])
    assert rungs.judge(0, 2, AMPLE) is not None
    assert rungs.judge(0, 2, left) is None


def test_a_short_finite_search_lasts_until_the_deadline() -> None:
    rungs = study([[float(number)] for number in range(100)])
    train(rungs, 200, [0.0, 0.0])
    few = TimeLeft(reports=1000.0, horizon=32, to_start=3, slots=1)
    assert rungs.judge(50, 1, AMPLE) is None or rungs.judge(50, 1, few) is None
    assert rungs.judge(1, 1, few) is None


def test_nan_is_worst_and_a_value_is_kept_for_good() -> None:
    rungs = study([[math.nan], [1.0], [2.0], [3.0]])
    verdict = rungs.judge(0, 1, AMPLE)
    assert verdict is not None and (verdict.better, verdict.values) == (3, 4)
    assert str(verdict) == (
        "rung 1: 3 of 4 are better by more than 0, the usual gain; ranks hold 1.00"
    )
    rungs.record(0, 0, 9.0)
    assert rungs.judge(0, 1, AMPLE) is not None


def test_the_order_in_which_trials_report_does_not_matter() -> None:
    curves = [[0.1 * n, 0.3 * n, 0.2 * n, 0.5 * n] for n in range(10)]
    one, other = study(curves), Rungs()
    for number in reversed(range(10)):
        for rung in (2, 0, 1):
            other.record(number, rung, curves[number][2**rung - 1])
    for number in range(10):
        assert one.judge(number, 4, AMPLE) == other.judge(number, 4, AMPLE)


def test_a_failed_trial_leaves_no_trace() -> None:
    curves = [[0.1 * n, 0.3 * n, 0.2 * n, 0.5 * n] for n in range(6)]
    rungs = study(curves)
    for number, scores in ((8, [0.25, 0.1, 0.9]), (9, [0.15, math.nan, 0.4, 0.8])):
        train(rungs, number, scores)
    train(rungs, 8, [0.25, 0.1, 0.9], "failed")
    train(rungs, 9, [], "running")  # its reports were replaced
    for number in range(6):
        assert rungs.judge(number, 4, AMPLE) == study(curves).judge(number, 4, AMPLE)
