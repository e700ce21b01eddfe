"""The gangs of trainings that all must end: when they can end together, and which have to grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies.shockwave.gangs import common_end, gangs_in_time

SPEEDUP = Speedup({2: 1.87, 4: 3.42, 8: 5.6})
SIZES = SPEEDUP.useful(8)
_WORKS = st.lists(st.floats(1.0, 1e5), min_size=1, max_size=30).map(np.array)


def test_many_alike_end_when_their_work_is_done_and_need_no_gang() -> None:
    works = np.full(20, 3000.0)
    assert common_end(works, SIZES, SPEEDUP, 8) == pytest.approx(20 * 3000 / 8, rel=0.02)
    assert gangs_in_time(works, SIZES, SPEEDUP, 8).tolist() == [1] * 20


def test_a_long_one_among_short_ones_grows() -> None:
    works = np.array([9000.0, *[300.0] * 15])
    first, *others = gangs_in_time(works, SIZES, SPEEDUP, 8)
    assert first > 1 and set(others) == {1}


def test_the_last_one_takes_all_slots() -> None:
    assert common_end(np.array([560.0]), SIZES, SPEEDUP, 8) == pytest.approx(100.0, rel=0.02)
    assert gangs_in_time(np.array([560.0]), SIZES, SPEEDUP, 8)[0] >= 4


@given(works=_WORKS, slots=st.integers(1, 16), factor=st.floats(1.01, 10.0))
def test_the_common_end_is_a_bound_that_grows_with_the_work(
    works: np.ndarray, slots: int, factor: float
) -> None:
    """No training ends sooner than on its best gang, and S(k) is at most k."""
    sizes = SPEEDUP.useful(slots)
    end = common_end(works, sizes, SPEEDUP, slots)
    tried = (works.sum() + works.max()) / (works.max() / SPEEDUP(sizes[-1]))
    rounding = tried ** (1 / 399)  # from one instant that is tried to the next
    least = max(works.max() / SPEEDUP(sizes[-1]), works.sum() / slots)
    assert least * (1 - 1e-9) <= end <= works.sum() * rounding
    assert common_end(factor * works, sizes, SPEEDUP, slots) == pytest.approx(factor * end)
    gangs = gangs_in_time(works, sizes, SPEEDUP, slots)
    assert set(gangs.tolist()) <= set(sizes)
    assert (np.diff(gangs[np.argsort(works)]) >= 0).all(), "a longer one has no smaller gang"
