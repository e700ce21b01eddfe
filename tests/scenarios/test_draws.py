"""Possible futures of trials, and the level to which their ends are brought."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.forecasting.curve_priors import LEVELS
from optuna_deadline.forecasting.futures import Future, draw_places
from optuna_deadline.forecasting.learning_curves import Curve, learn_doublings
from optuna_deadline.scenarios.comparison import calibrate

scores = st.lists(st.floats(0.0, 1.0, allow_subnormal=False), min_size=1, max_size=8)


@given(scores, st.integers(1, 40), st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)))
def test_a_future_goes_on_from_what_is_known_and_never_falls(
    found: list[float], more: int, places: tuple[float, float]
) -> None:
    curve = Curve.of(range(1, len(found) + 1), found)
    assert curve is not None
    steps = range(1, len(found) + more + 1)
    future = Future.of(curve, steps, learn_doublings([curve]))
    low, high = (future.draw(place) for place in sorted(places))
    assert low[: len(found)] == high[: len(found)] == curve.best
    assert all(a <= b + 1e-12 for a, b in pairwise(high))
    assert len(low) == len(high) == len(steps)
    assert all(a <= b + 1e-12 for a, b in zip(low, high, strict=True))


def test_places_are_even_and_shared_in_part() -> None:
    rng = np.random.default_rng(3)
    drawn = np.array([draw_places(rng, 2) for _ in range(4000)])
    assert np.quantile(drawn[:, 0], [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)
    assert 0.3 < np.corrcoef(drawn.T)[0, 1] < 0.6


@given(
    st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(-0.3, 0.5)), min_size=1, max_size=20),
    st.lists(st.floats(0.5, 1.0), min_size=len(LEVELS), max_size=len(LEVELS)),
)
def test_gains_keep_their_signs_and_are_not_more_than_was_simulated(
    draws: list[tuple[float, float]], levels: list[float]
) -> None:
    levels.sort()
    before = [one for one, _ in draws]
    after = [max(0.5, one + gain) for one, gain in draws]
    real, moved = calibrate(before, after, levels, 0.5)
    assert all(levels[0] - 1e-12 <= one <= levels[-1] + 1e-12 for one in real)
    for one, other, was, would in zip(real, moved, before, after, strict=True):
        assert other >= 0.5
        assert abs(other - one) <= abs(would - was) + 1e-12
        assert (other - one) * (would - was) >= 0
    assert calibrate(before, [], levels, 0.5)[1] == []
