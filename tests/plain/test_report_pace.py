"""When the next report comes, and the first one of a new trial."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.forecasting.reporting import (
    ReportPace,
    seconds_of_new_trial,
    step_before,
)


def _pace(started: float, *reports: tuple[int, float]) -> ReportPace:
    pace = ReportPace(started)
    for step, at in reports:
        pace = pace.reported(step, at)
    return pace


def test_before_the_first_report_nothing_is_known() -> None:
    assert _pace(0.0).seconds_per_step is None
    assert _pace(0.0).startup == 0.0


def test_one_report_is_no_pace() -> None:
    """Half of what it took is taken for start-up until another report tells."""
    pace = _pace(100.0, (1, 110.0))
    assert pace.next_report() == pytest.approx(5.0)
    assert pace.seconds_per_step == 10.0
    assert pace.startup == 0.0


def test_after_one_report_the_start_up_of_other_trials_is_taken_off() -> None:
    first = _pace(0.0, (1, 100.0), (2, 102.0))
    second = _pace(200.0, (1, 210.0), (2, 212.0))  # 8 s of start-up
    young = _pace(300.0, (1, 311.0))
    assert young.next_report([first, second]) == pytest.approx(1.1 * 3.0)
    assert _pace(300.0, (1, 305.0)).next_report([first, second]) == pytest.approx(1.1 * 2.0)
    # What the first trial of a process takes is no measure of the others.
    assert young.next_report([first]) == pytest.approx(5.5)


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


@pytest.mark.parametrize(
    ("steps", "before"),
    [
        ([1, 2, 3], 0),
        ([0, 1, 2], -1),
        ([1000, 1001, 1002], 999),
        ([1000], 999),
        ([0], -1),
        ([10, 20, 30], 0),
        ([0, 10, 20], -1),
        ([1, 11, 21], 0),
        ([2000, 2100], 1900),
    ],
)
def test_steps_are_counted_from_the_first(steps: list[int], before: int) -> None:
    assert step_before(steps) == before
    pace = _pace(0.0, *((step, 10.0 * at) for at, step in enumerate(steps, start=1)))
    assert pace.steps == steps[0] - before


def test_steps_that_begin_late_are_no_slower() -> None:
    usual = _pace(0.0, *((k, float(k)) for k in range(1, 5)))
    late = _pace(0.0, *((1000 + k, float(k)) for k in range(1, 5)))
    assert (late.startup, late.seconds_per_step) == (usual.startup, usual.seconds_per_step)


def test_a_report_seen_before_changes_nothing() -> None:
    pace = _pace(0.0, (1, 1.0), (2, 2.0))
    assert pace.reported(2, 5.0) == pace
    assert pace.reported(1, 5.0) == pace


@given(st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=5), st.floats(0, 1e6))
def test_the_forecast_covers_what_was_seen(intervals: list[float], started: float) -> None:
    at, pace = started, ReportPace(started)
    for step, interval in enumerate(intervals):
        at += interval
        pace = pace.reported(step, at)
    assert pace.next_report() >= max(intervals[1:])


def test_half_of_what_a_lone_first_trial_did_before_its_steps_counts() -> None:
    first = _pace(0.0, *((k, 80.0 + k) for k in range(1, 5)))
    second = _pace(100.0, *((k, 102.0 + k) for k in range(1, 5)))
    assert seconds_of_new_trial([first], [], 99.0) == pytest.approx(41.0)
    assert seconds_of_new_trial([first, second], [], 99.0) == pytest.approx(3.0)
    assert seconds_of_new_trial([_pace(0.0, (1, 80.0))], [], 99.0) == 80.0
    assert seconds_of_new_trial([], [], 99.0) == 0.0


def _first_reports(*seconds: float) -> list[ReportPace]:
    return [_pace(0.0, (1, took)) for took in seconds]


def test_a_new_trial_may_be_as_slow_as_nine_in_ten() -> None:
    """The first trial of a process is left out, and the slowest of ten others."""
    paces = _first_reports(60.0, 1.0, 5.0, 2.0, 3.0, 1.0, 2.0, 3.0, 2.0, 1.0, 50.0)
    assert seconds_of_new_trial(paces, [], spare=10.0) == 5.0
    assert seconds_of_new_trial(paces[:3], [], spare=10.0) == 5.0


def test_no_more_than_may_stay_unused_is_kept_for_a_slow_new_trial() -> None:
    paces = _first_reports(600.0, 100.0, 100.0, 900.0)
    assert seconds_of_new_trial(paces, [], spare=300.0) == 300.0
    assert seconds_of_new_trial(paces, [], spare=10.0) == 100.0


def test_threads_that_set_up_at_once_do_not_count_as_slow() -> None:
    paces = [_pace(0.0, *((k, 80.0 + k) for k in range(1, 5))) for _ in range(3)]
    usual = [_pace(100.0, *((k, 100.0 + k) for k in range(1, 5))) for _ in range(3)]
    assert seconds_of_new_trial(paces + usual, [], spare=99.0) == pytest.approx(1.0)


def test_trials_without_a_report_count_by_their_whole_time() -> None:
    assert seconds_of_new_trial([], [1.0, 4.0, 2.0], spare=99.0) == 4.0
    assert seconds_of_new_trial(_first_reports(1.0, 1.0), [4.0], spare=99.0) == 4.0
