"""What a trial that began now would come to: more time is never worse, and the unit is free."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.forecasting.learning_curves import Curve
from optuna_deadline.forecasting.reporting import prospects

# Of sixty-fourths sums are exact.
scores = st.lists(st.integers(-64, 64).map(lambda n: n / 64), min_size=1, max_size=20)
cohorts = st.lists(st.tuples(scores, st.floats(0.1, 10)), min_size=1, max_size=5)
Cohort = list[tuple[list[float], float]]


def _known(cohort: Cohort, unit: float = 1.0) -> tuple[dict[int, Curve], dict[int, float]]:
    curves = {}
    for number, (values, _) in enumerate(cohort):
        curve = Curve.of(range(1, len(values) + 1), values)
        assert curve is not None
        curves[number] = curve
    return curves, {number: unit * seconds for number, (_, seconds) in enumerate(cohort)}


@given(cohorts, st.floats(0, 300), st.floats(1, 3))
def test_more_time_is_never_worse(cohort: Cohort, left: float, factor: float) -> None:
    curves, seconds = _known(cohort)
    soon = prospects(curves, seconds, left=left, horizon=40)
    late = prospects(curves, seconds, left=left * factor, horizon=40)
    assert all(soon[number] <= late[number] + 1e-9 for number in curves)


@given(cohorts, st.floats(0, 300))
def test_hours_are_as_good_as_seconds(cohort: Cohort, left: float) -> None:
    told = prospects(*_known(cohort), left=left, horizon=40)
    assert prospects(*_known(cohort, 4096.0), left=4096.0 * left, horizon=40) == told


@given(cohorts)
def test_with_all_the_time_a_whole_training_is_worth_its_best(cohort: Cohort) -> None:
    curves, seconds = _known(cohort)
    longest = max(curves, key=lambda number: curves[number].steps[-1])
    assert prospects(curves, seconds)[longest] == curves[longest].best[-1]


def test_who_would_not_report_once_is_worth_nothing_and_who_has_no_pace_has_the_median() -> None:
    curves, _ = _known([([0.5, 0.6, 0.7], 1.0)] * 3)
    told = prospects(curves, {0: 1.0, 1: 10.0}, left=5.0)
    assert told == {0: 0.7, 1: -math.inf, 2: -math.inf}
    assert prospects(curves, {}, left=5.0)[0] == pytest.approx(0.7)
