"""What a check's figures mean, and which steps it chooses."""

from __future__ import annotations

import math

import pytest

from optuna_deadline.checking.moves import LeavePoints, choose_steps
from optuna_deadline.checking.rows import (
    CheckResult,
    CheckRow,
    Gap,
    exit_code,
    merged,
    relative,
    row_of_gap,
    summed_up,
    values_apart,
)


def test_a_pause_is_exact_to_the_last_bit_only() -> None:
    assert row_of_gap("paused", Gap({"weights": 0.0})).result is CheckResult.EXACT
    assert row_of_gap("paused", Gap({"weights": 1e-9})).bad


def test_a_move_is_exact_up_to_rounding_and_the_figure_is_shown() -> None:
    row = row_of_gap("moved", Gap({"weights": 4e-7}), tolerance=1e-6)
    assert row.result is CheckResult.EXACT and str(row) == "exact (4.0e-07, by rounding)"


def test_a_difference_has_its_figure_and_what_to_do() -> None:
    row = row_of_gap("moved", Gap({"weights": 0.3, "schedules": 1.0}), advice="Take the mean.")
    assert str(row) == "differs by 3.0e-01 in weights"
    assert row.advice == "Take the mean." and row.bad


def test_what_a_training_does_by_itself_is_no_fault_of_a_move() -> None:
    row = row_of_gap("moved", Gap({"weights": 0.3}), noise=0.2, noise_is="dropout does")
    assert row.result is CheckResult.DIFFERS and not row.bad
    assert "no more than dropout does (2.0e-01)" in str(row)
    assert row_of_gap("moved", Gap({"weights": 0.9}), noise=0.2).bad


def test_other_batches_differ_whatever_the_weights_are() -> None:
    gap = merged([Gap({"weights": 0.0}), Gap(unlike=("it has seen other batches",))])
    row = row_of_gap("paused", gap, noise=1.0)
    assert math.isinf(gap.figure) and row.bad
    assert str(row) == "differs: it has seen other batches"


def test_an_average_of_gradients_does_not_judge_a_move() -> None:
    gap = Gap({"weights": 1e-8, "optimizer": 1e-4})
    assert gap.figure == 1e-4
    assert gap.without_optimizer().figure == 1e-8


@pytest.mark.parametrize(
    ("one", "other", "gap"),
    [
        (2.0, 1.0, 0.5),
        (0.0, 0.0, 0.0),
        (math.nan, math.nan, 0.0),
        (math.inf, math.inf, 0.0),
        (math.nan, 1.0, math.inf),
    ],
)
def test_numbers_are_compared_relatively(one: float, other: float, gap: float) -> None:
    assert relative(one, other) == gap


def test_a_report_that_only_one_training_makes_is_a_difference() -> None:
    assert values_apart({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}).figure == 0.0
    assert values_apart({0: 1.0, 1: 2.0}, {0: 1.0}).unlike == (
        "step 1 is reported undisturbed only",
    )


def test_a_batch_that_grows_is_known_of_all_gaps_together() -> None:
    assert merged([Gap(grows=True), Gap()]).grows


def test_an_outcome_is_one_line_which_names_what_is_not_exact() -> None:
    assert summed_up({"a": "exact", "b": "exact (1e-8, by rounding)"}) == (
        "2 of 2 ways to train are exact"
    )
    assert summed_up({"a": "exact", "moved": "differs by 0.1"}) == (
        "1 of 2 ways to train are exact; moved: differs by 0.1"
    )


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (CheckResult.EXACT, 0),
        (CheckResult.REFUSED, 0),
        (CheckResult.NOT_TRIED, 0),
        (CheckResult.DIFFERS, 1),
        (CheckResult.CRASHED, 1),
    ],
)
def test_only_what_is_silent_or_lost_fails_a_pipeline(result: CheckResult, code: int) -> None:
    assert exit_code([CheckRow("a", CheckResult.EXACT), CheckRow("b", result)]) == code


def test_a_training_is_left_within_an_epoch_and_at_a_report_that_is_made_on_more_slots() -> None:
    steps = choose_steps(18, reported=[10])
    assert steps == LeavePoints(last=18, within=6, report=11, back=12, later=15)
    assert steps.away < 11 <= steps.back


@pytest.mark.parametrize("last", range(5, 40))
@pytest.mark.parametrize("every", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize("fits", [[], [4], [1, 3], [20], [100]])
def test_steps_are_in_order_however_often_a_training_reports(
    last: int, every: int, fits: list[int]
) -> None:
    steps = choose_steps(last, list(range(every, last, every)), fits)
    assert 1 <= steps.away < steps.back < steps.last == last
    assert 1 <= steps.within < last and steps.within <= steps.later < last


def test_a_training_of_several_fits_is_left_in_the_second_one() -> None:
    assert 20 < choose_steps(60, reported=[10, 20, 30, 40, 50], fits=[20, 40]).later < 40
