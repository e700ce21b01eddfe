"""The rung rule by itself, and against numpy."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.pruners._rung_rule import RungRule

VALUES = st.floats(allow_nan=True, allow_infinity=True)
ETA = st.integers(2, 8)


def _score(value: float, maximize: bool) -> tuple[bool, float]:
    """Larger is better, and NaN the worst."""
    if math.isnan(value):
        return False, 0.0
    return True, value if maximize else -value


def _decide(values: list[float], eta: int, maximize: bool) -> list[bool]:
    """Who of a rung is eliminated once all have reported."""
    scores = [_score(value, maximize) for value in values]
    return [
        RungRule(1, eta).eliminates(sum(other > own for other in scores), len(scores))
        for own in scores
    ]


@pytest.mark.parametrize(
    ("step", "passed"), [(0, 0), (1, 0), (2, 1), (7, 1), (8, 2), (31, 2), (32, 3), (400, 4)]
)
def test_milestones_are_geometric(step: int, passed: int) -> None:
    assert len(RungRule(2, 4).values({step: 0.0})) == passed


def test_no_milestone_at_max_resource_or_beyond() -> None:
    rungs = RungRule(1, 2, max_resource=4)
    assert [len(rungs.values({step: 0.0})) for step in range(6)] == [0, 1, 2, 2, 2, 2]


def test_the_first_report_at_or_past_the_milestone_counts() -> None:
    reports = {0: 9.0, 3: 3.0, 5: 5.0, 20: 20.0}
    assert RungRule(1, 4).values(reports) == [3.0, 5.0, 20.0]


def test_one_alone_has_no_cutoff() -> None:
    assert not RungRule(1, 4).eliminates(0, 1)
    assert not RungRule(1, 4).eliminates(0, 0)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=40), st.sampled_from([2, 4, 8, 16]))
def test_counting_says_what_numpys_percentile_says(values: list[int], eta: int) -> None:
    cutoff = np.percentile(values, 100 * (1 - 1 / eta))
    assert _decide([float(v) for v in values], eta, True) == [v < cutoff for v in values]


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=40), ETA)
def test_counting_says_what_exact_interpolation_says(values: list[int], eta: int) -> None:
    ranked, target = sorted(values), Fraction((len(values) - 1) * (eta - 1), eta)
    low, high = ranked[math.floor(target)], ranked[math.ceil(target)]
    cutoff = low + (target - math.floor(target)) * (high - low)
    assert _decide([float(v) for v in values], eta, True) == [v < cutoff for v in values]


@given(st.lists(VALUES, min_size=1, max_size=40), ETA, st.booleans())
def test_the_best_is_never_eliminated(values: list[float], eta: int, maximize: bool) -> None:
    scores = [_score(value, maximize) for value in values]
    eliminated = _decide(values, eta, maximize)
    assert not any(out for own, out in zip(scores, eliminated, strict=True) if own == max(scores))


@given(st.lists(VALUES, max_size=40), ETA)
def test_mirrored_values_give_mirrored_decisions(values: list[float], eta: int) -> None:
    assert _decide(values, eta, True) == _decide([-value for value in values], eta, False)


@given(st.lists(VALUES, max_size=30), ETA, st.randoms())
def test_order_of_arrival_does_not_matter(values: list[float], eta: int, random: object) -> None:
    order = list(range(len(values)))
    random.shuffle(order)  # type: ignore[attr-defined]
    decisions = _decide(values, eta, True)
    assert _decide([values[i] for i in order], eta, True) == [decisions[i] for i in order]


@given(st.lists(VALUES, min_size=2, max_size=40), ETA)
def test_about_one_in_eta_survives(values: list[float], eta: int) -> None:
    survivors = [v for v, out in zip(values, _decide(values, eta, True), strict=True) if not out]
    distinct = len({_score(value, True) for value in survivors})
    assert distinct <= math.floor((len(values) - 1) / eta) + 1


def test_nan_is_the_worst_and_infinities_are_ranked() -> None:
    nan, inf = math.nan, math.inf
    assert _decide([nan, 1.0], 2, True) == [True, False]
    assert _decide([nan, nan, nan, 1.0], 2, True) == [False] * 4  # the cutoff is NaN's rank
    assert _decide([nan, 1.0, 2.0], 2, True) == [True, False, False]
    assert _decide([inf, 1.0, 2.0, 3.0], 4, True) == [False, True, True, True]
    assert _decide([inf, 1.0, 2.0, 3.0], 4, False) == [True, False, True, True]
    assert _decide([nan, inf], 2, False) == [True, False]
    assert _decide([inf, inf], 2, True) == [False, False]
