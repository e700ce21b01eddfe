"""When the next report comes, and whether a newcomer can still matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.forecasting.entrance import may_enter, seconds_to_matter, steps_to_matter
from optuna_deadline.forecasting.pace import Pace


def _pace(started: float, *reports: tuple[int, float]) -> Pace:
    pace = Pace(started)
    for step, at in reports:
        pace = pace.reported(step, at)
    return pace


def test_before_the_first_report_nothing_is_known() -> None:
    assert _pace(0.0).seconds_per_step is None
    assert _pace(0.0).startup == 0.0


def test_after_one_report_the_time_from_the_start_counts() -> None:
    pace = _pace(100.0, (1, 110.0))
    assert pace.next_report() == pytest.approx(11.0)
    assert pace.seconds_per_step == 10.0
    assert pace.startup == 0.0


def test_then_the_longest_recent_interval() -> None:
    pace = _pace(0.0, (1, 50.0), (2, 52.0), (3, 57.0), (4, 58.0))
    assert pace.next_report() == pytest.approx(5.5)
    assert pace.startup == pytest.approx(50.0 - 8.0 / 3)
    slow_long_ago = _pace(0.0, (0, 1.0), *((k, 100.0 + k) for k in range(1, 8)))
    assert slow_long_ago.next_report() == pytest.approx(1.1)


def test_intervals_are_between_reports_whatever_their_steps() -> None:
    pace = _pace(0.0, (10, 10.0), (20, 20.0), (30, 30.0))
    assert pace.next_report() == pytest.approx(11.0)
    assert pace.seconds_per_step == 1.0
    assert pace.startup == 0.0


def test_a_report_seen_before_changes_nothing() -> None:
    pace = _pace(0.0, (1, 1.0), (2, 2.0))
    assert pace.reported(2, 5.0) == pace
    assert pace.reported(1, 5.0) == pace


@given(st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=5), st.floats(0, 1e6))
def test_the_forecast_covers_what_was_seen(intervals: list[float], started: float) -> None:
    at, pace = started, Pace(started)
    for step, interval in enumerate(intervals):
        at += interval
        pace = pace.reported(step, at)
    assert pace.next_report() >= max(intervals[1:])


def test_a_newcomer_must_come_within_one_factor_of_the_furthest() -> None:
    def steps(furthest: int, max_resource: int | None = None) -> float:
        return steps_to_matter(
            furthest, min_resource=2, max_resource=max_resource, reduction_factor=4
        )

    assert steps(0) == 2
    assert steps(100) == 25
    assert steps(100, 40) == 10


def test_seconds_to_matter() -> None:
    assert seconds_to_matter(10, [3.0, 5.0, 99.0], [1.0, 2.0, 50.0]) == pytest.approx(27.5)
    assert seconds_to_matter(10, [], [2.0]) == pytest.approx(22.0)


@pytest.mark.parametrize(
    ("left", "needed", "may"), [(10, 5, True), (5, 5, True), (4, 5, False), (-1, 0, False)]
)
def test_may_enter(left: float, needed: float, may: bool) -> None:
    assert may_enter(left, needed) is may
