"""Forecasts of curves: never below what is in hand, of any unit, and as sure as they say."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import rises
from optuna_deadline.forecasting.curve_priors import ERRORS, LEVELS, SHARE, level_quantiles
from optuna_deadline.forecasting.futures import best_by, measures, times_ahead
from optuna_deadline.forecasting.learning_curves import Curve, Doublings, learn_doublings
from optuna_deadline.simulation import generate
from optuna_deadline.simulation.tables import own

pytestmark = [pytest.mark.slow_names(r"^test_rises_of_studies"), pytest.mark.nightly_but(r"^$")]

# Of sixty-fourths sums are exact, in any of the units below.
scores = st.lists(st.integers(-64, 64).map(lambda n: n / 64), min_size=1, max_size=30)
cohorts = st.lists(scores, min_size=1, max_size=6)


def _curve(values: list[float]) -> Curve:
    curve = Curve.of(range(1, len(values) + 1), values)
    assert curve is not None
    return curve


@given(cohorts, st.floats(1, 100))
def test_a_forecast_rises_with_its_level_and_begins_at_what_is_in_hand(
    cohort: list[list[float]], factor: float
) -> None:
    curves = [_curve(values) for values in cohort]
    model = learn_doublings(curves)
    for curve in curves:
        told = model.quantiles(curve, curve.steps[-1] * factor)
        assert list(told) == sorted(told) and told[0] >= curve.best[-1]
        assert set(model.quantiles(curve, curve.steps[-1])) == {curve.best[-1]}


@given(cohorts, st.sampled_from([0.25, 1.0, 8.0]), st.integers(-10, 10).map(float))
def test_the_unit_of_a_score_does_not_matter(
    cohort: list[list[float]], unit: float, origin: float
) -> None:
    def told(a: float, b: float) -> list[float]:
        curves = [_curve([a * value + b for value in values]) for values in cohort]
        return list(learn_doublings(curves).quantiles(curves[0], 3 * curves[0].steps[-1]))

    plain = [unit * level + origin for level in told(1.0, 0.0)]
    assert told(unit, origin) == pytest.approx(plain, rel=1e-6, abs=1e-6 * (unit + abs(origin)))


def test_the_prior_is_what_the_recording_says() -> None:
    curves = [_curve(list(values)) for values in own()[0].curves]
    shares = []
    for curve in curves:
        step = 4.0
        while step <= curve.steps[-1]:
            share = curve.until(step).share
            shares += [] if share is None else [share]
            step *= 2
    assert statistics.median(shares) == pytest.approx(SHARE, abs=0.01)
    made = Doublings(tuple(curves)).look_back()
    for age, (some, priors) in enumerate(zip(made, ERRORS, strict=True)):
        for errors, prior, young in zip(some, priors, ERRORS[0], strict=True):
            if errors:
                assert level_quantiles(errors) == pytest.approx(prior, abs=0.01)
            else:
                assert age and prior == young


def test_rises_of_studies_on_our_own_curves_are_as_often_inside_as_the_prior_says() -> None:
    studies = rises.cases(seeds=1)[:: len(rises.SLOTS) * len(rises.TRAININGS) // 3]
    held = []
    for rise in (rise for _, study in studies for rise in study.run()):
        for which, times in enumerate(rise.times):
            row = times_ahead(which, rise.part, 1.0)
            held.append(row[LEVELS.index(0.1)] <= times <= row[LEVELS.index(0.9)])
    assert len(held) >= 100
    assert 0.65 <= statistics.fmean(held) <= 0.95


@given(cohorts)
def test_a_curve_behind_the_others_may_catch_up_with_the_best_tenth(
    cohort: list[list[float]],
) -> None:
    curves = [_curve(values) for values in cohort]
    model = learn_doublings(curves)
    for curve in curves:
        came = [one.at(curve.steps[-1]) for one in curves if len(one.steps) >= len(curve.steps)]
        lag = model.lag(curve)
        assert 0 <= lag <= max(came) - curve.best[-1]
        assert model.unit(curve) >= lag


def test_young_curves_learn_from_young_ones() -> None:
    # In this study the second doubling brings nothing and the third everything.
    curves = [Curve((1.0, 2.0, 4.0, 8.0), (0.0, 0.1, 0.1, 0.9 + k / 100)) for k in range(40)]
    model = learn_doublings(curves)
    middle = LEVELS.index(0.5)
    assert model.errors[0][0][middle] < 0 < model.errors[1][0][middle]


@pytest.mark.parametrize("family", ["power-law", "crossing", "climbing"])
def test_a_band_that_says_80_percent_holds_about_that_many(family: str) -> None:
    rng = random.Random(1)
    held = []
    for seed in range(20):
        workload = generate(family, seed, configurations=16, steps=64)
        wholes = [_curve(list(values)) for values in workload.curves]
        seen = [whole.until(2 ** rng.uniform(1, 6)) for whole in wholes]
        model = learn_doublings(seen)
        for whole, known in zip(wholes, seen, strict=True):
            for step in {2 * known.steps[-1], whole.steps[-1]}:
                if known.steps[-1] < step <= whole.steps[-1]:
                    told = model.quantiles(known, step)
                    low, high = told[LEVELS.index(0.1)], told[LEVELS.index(0.9)]
                    held.append(low <= whole.at(step) <= high)
    assert 0.65 <= statistics.fmean(held) <= 0.95


@given(cohorts, st.floats(1, 40))
def test_the_best_of_a_study_is_never_forecast_below_what_is_in_hand(
    cohort: list[list[float]], factor: float
) -> None:
    curves = [_curve(values) for values in cohort]
    course = max(curves, key=lambda curve: curve.best[-1])
    now = course.steps[-1] + 1
    apart = measures(curves, course, now)
    told = best_by(course.best[-1], apart, now, factor * now)
    assert min(apart) >= 0
    assert list(told) == sorted(told) and told[0] >= course.best[-1]
    assert set(best_by(course.best[-1], apart, now, now / factor)) == {course.best[-1]}


@given(st.integers(0, 2), st.floats(1, 1000), st.floats(1, 8), st.floats(1, 8))
def test_with_more_time_the_best_is_expected_to_have_risen_as_much_or_more(
    which: int, now: float, near: float, far: float
) -> None:
    soon, later = times_ahead(which, now, now * near), times_ahead(which, now, now * near * far)
    assert all(a <= b + 1e-9 for a, b in zip(soon, later, strict=True))


def test_the_measures_are_the_lead_and_what_came_lately_to_the_study_and_to_the_best_trial() -> (
    None
):
    curves = [Curve((1.0, 2.0, 4.0), (0.0, 0.5, 0.5 + k / 10)) for k in range(11)]
    course = Curve((10.0, 50.0, 90.0), (0.0, 1.2, 1.5))
    assert measures(curves, course, 100.0) == pytest.approx((0.1, 0.3, 1.0))
    assert measures(curves, course, 200.0) == pytest.approx(
        (0.1, 0.01, 1.0)
    )  # a tenth of the lead


@given(cohorts, st.floats(8, 1000), st.floats(1, 1000))
def test_beyond_all_that_was_measured_more_steps_are_never_forecast_to_be_worse(
    cohort: list[list[float]], factor: float, more: float
) -> None:
    curves = [_curve(values) for values in cohort]
    model = learn_doublings(curves)
    step = factor * curves[0].steps[-1]
    for near, far in zip(
        model.quantiles(curves[0], step), model.quantiles(curves[0], more * step), strict=True
    ):
        assert near <= far + 1e-9
