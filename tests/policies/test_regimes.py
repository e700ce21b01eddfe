"""A training that gets faster or slower for good: what its reports say, and what S(k) learns."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.allocation.records import ReportRow, SegmentRow
from optuna_deadline.forecasting.regimes import (
    TrialRegimes,
    changes_ahead,
    learn_schedule,
    seconds_between,
    step_after,
)
from optuna_deadline.forecasting.throughput import (
    PRIOR_EXPONENT_OF_CPUS,
    SegmentPace,
    Throughputs,
)
from optuna_deadline.history.series import measure
from optuna_deadline.policies.api import Report, TrialView

EPOCHS = 60


def paces(seed: int, change: int, factor: float, noise: float) -> list[float]:
    """Seconds of each epoch: 10, divided by a factor from an epoch on; 3 % take twice as long."""
    rng = random.Random(seed)
    return [
        (10.0 if epoch < change else 10.0 / factor)
        * math.exp(rng.gauss(0, noise))
        * (2.0 if rng.random() < 0.03 else 1.0)
        for epoch in range(EPOCHS)
    ]


def learned(seconds: list[float]) -> Throughputs:
    """A trial on one slot, with one segment and a report for each epoch."""
    found = Throughputs()
    for epoch in range(len(seconds)):
        found.take_report(0, epoch + 1, sum(seconds[: epoch + 1]), 1)
    found.take(1, SegmentPace(0, 1, len(seconds), sum(seconds)))
    found.learn()
    return found


def errors(change: int, factor: float, after: int, noise: float = 0.1) -> tuple[float, float]:
    """Mean errors of the remaining time so long after a change: by regime, and by all segments."""
    regime, segments = [], []
    for seed in range(100):
        seconds, at = paces(seed, change, factor, noise), change + after
        left = sum(10.0 if epoch < change else 10.0 / factor for epoch in range(at, EPOCHS))
        pace = learned(seconds[:at]).step_seconds[0]
        regime.append(abs(pace * (EPOCHS - at) / left - 1))
        segments.append(abs(fmean(seconds[:at]) * (EPOCHS - at) / left - 1))
    return fmean(regime), fmean(segments)


@pytest.mark.parametrize("factor", [2.0, 1.5, 0.5])
def test_three_reports_after_a_change_the_remaining_time_is_right(factor: float) -> None:
    regime, segments = errors(30, factor, 3)
    assert regime <= 0.15 < segments
    assert errors(30, factor, 10)[0] <= 0.06


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.15])
def test_without_a_change_it_is_as_good_as_before(noise: float) -> None:
    regime, segments = errors(30, 1.0, 15, noise)
    assert regime <= segments + 0.01


def test_gangs_are_compared_within_one_regime() -> None:
    """The batch doubles at epoch 10, the second slot comes at 20: S(2) is 1.8, not 2.7."""
    found = Throughputs()
    for number in range(8):
        trained = 0.0
        for epoch in range(40):
            trained += (10.0 if epoch < 10 else 5.0) / (1.0 if epoch < 20 else 1.8)
            found.take_report(number, epoch, trained, 1 if epoch < 20 else 2)
        found.take(2 * number, SegmentPace(number, 1, 20, 150.0))
        found.take(2 * number + 1, SegmentPace(number, 2, 20, 20 * 5.0 / 1.8))
    found.learn()
    assert found.speedup(2) == pytest.approx(1.8, rel=0.05)
    assert found.step_seconds[0] == pytest.approx(5.0, rel=0.05)


def test_a_gang_that_made_one_report_stays_measured_after_a_change() -> None:
    """Its only report counts for neither size, but its segment lies within one regime."""
    found = Throughputs(PRIOR_EXPONENT_OF_CPUS)
    lengths = [(1, [2.5] * 4), (2, [3.0]), (1, [2.5] * 4 + [4.0] * 3)]
    trained, step = 0.0, 0
    for segment, (slots, epochs) in enumerate(lengths):
        for seconds in epochs:
            trained, step = trained + seconds, step + 1
            found.take_report(0, step, trained, slots)
        found.take(segment, SegmentPace(0, slots, len(epochs), sum(epochs)))
        found.learn()
        if segment:
            assert found.speedup(2) == pytest.approx(2.5 / 3.0), "not worth a second try"
    assert found.step_seconds[0] == pytest.approx(4.0), "of the regime that began last"


def test_a_gang_belongs_to_the_regime_of_its_last_report() -> None:
    """It has trained for a moment beyond that report, from which the next regime counts."""
    found = Throughputs()
    seconds = {1: [10.0, 10.0], 2: [6.0], 3: [4.0, 4.0]}
    trained, step = 0.0, 0
    for segment, epochs in seconds.items():
        for each in epochs:
            trained, step = trained + each, step + 1
            found.take_report(0, step, trained, 2 if segment == 2 else 1, "aab"[segment - 1])
        slots, steps = 2 if segment == 2 else 1, len(epochs) + 0.01
        found.take(segment, SegmentPace(0, slots, steps, sum(epochs) + 0.05))
    found.learn()
    assert found.speedup(2) == pytest.approx(10 / 6, rel=0.05)


def test_a_resize_is_no_change_of_regime() -> None:
    regimes = TrialRegimes()
    trained = 0.0
    for step in range(1, 31):
        slots = 1 if step <= 10 or step > 20 else 4
        trained += 10.0 / slots
        assert not regimes.take(step, trained, slots)
    assert not regimes.changes


def test_a_few_slow_reports_and_reports_that_say_nothing_are_no_change() -> None:
    regimes = TrialRegimes()
    trained = 0.0
    for step in range(1, 30):
        trained += 20.0 if step % 10 in (1, 2) else 10.0
        assert not regimes.take(step, trained, 1)
        assert not regimes.take(step, trained + 1e6, 1), "the same step again"
    assert not regimes.take(31, trained, 1), "no time has passed"
    assert not regimes.take(32, math.nan, 1)
    assert not regimes.take(33, trained + 30.0, 1) and regimes.stretches[0][1].steps == 30


def changed_at(step: int, factor: float = 0.5, until: int = EPOCHS) -> TrialRegimes:
    """A trial that changes after a step, if it comes there."""
    regimes, trained = TrialRegimes(), 0.0
    for now in range(1, until + 1):
        trained += 10.0 * (factor if now > step else 1.0)
        regimes.take(now, trained, 1)
    return regimes


def test_the_change_of_three_trials_is_the_schedule_of_all() -> None:
    trials = [changed_at(30), changed_at(32)]
    assert not learn_schedule(trials)
    trials.append(changed_at(31))
    known = learn_schedule(trials)
    assert known == (pytest.approx((31, 0.5)),)
    young, there = changed_at(99, until=8), changed_at(31, until=32)
    assert changes_ahead(young, known) == changes_ahead(there, known) == known
    assert changes_ahead(None, known) == known, "of a trial that has not reported"
    assert not changes_ahead(trials[0], known), "it has changed"
    assert not changes_ahead(changed_at(99, until=40), known), "it should have"
    apart = [changed_at(10), changed_at(25), changed_at(40)]
    assert not learn_schedule(apart)
    assert not learn_schedule([*trials, *(changed_at(99) for _ in range(4))])


def named(*regimes: tuple[int, float, str | None], slots: int = 1) -> TrialRegimes:
    """A trial that trains so many steps of so many seconds in each regime of a name."""
    trial, step, trained = TrialRegimes(), 0, 0.0
    for steps, seconds, name in regimes:
        for _ in range(steps):
            step, trained = step + 1, trained + seconds
            trial.take(step, trained, slots, name)
            name = None  # only the first report of a regime names it
    return trial


def test_a_regime_that_a_report_names_begins_with_it() -> None:
    trial = named((10, 8.0, "batch 8"), (1, 2.0, "batch 32"))
    assert trial.changes == [pytest.approx((10, 0.25))]
    assert trial.stretches[-1][1] == (1, 2.0)
    assert named((5, 8.0, "batch 8"), (5, 8.0, "batch 8")).changes == [], "after a pause"
    assert named((5, 8.0, None), (5, 2.0, "batch 32")).changes == [pytest.approx((5, 0.25))]


def test_a_trial_that_returns_to_a_regime_has_its_pace_at_once() -> None:
    trial = named((10, 8.0, "small"), (10, 2.0, "large"), (1, 9.0, "small"))
    assert trial.stretches[-1][1] == (10, 9 * 8.0 + 9.0), "the first report has no pace"
    assert len(trial.stretches) == 2 and len(trial.changes) == 2


def test_a_change_that_no_report_names_is_found_in_a_named_regime_too() -> None:
    trial = named((10, 8.0, "batch 8"), (10, 2.0, None), (5, 1.0, "batch 32"))
    assert trial.changes == [pytest.approx((10, 0.25)), pytest.approx((20, 0.5))]


def test_a_change_with_a_resize_counts_and_has_no_factor() -> None:
    """Some of the first report's steps may have been trained on the former slots."""
    trial = named((5, 8.0, "batch 8"))
    assert trial.take(6, 40.0 + 2.0, 2, "batch 32") and trial.changes == [None]
    trial.take(7, 42.0 + 1.0, 2)
    assert trial.stretches == [{1: (4, 32.0)}, {2: (1, 1.0)}]
    assert not learn_schedule([trial, *(named((5, 8.0, "a"), (1, 1.0, "b")) for _ in "12")])


@pytest.mark.parametrize("resized", range(9, 16))
def test_a_change_that_a_resize_hides_is_taken_from_the_others(resized: int) -> None:
    """S(2) is 1.8: with the change in one regime, it would be 3.6."""
    found = Throughputs()
    for number in range(6):
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for step in range(1, 31):
            slots = 2 if number > 2 and step >= resized else 1
            seconds[slots].append((8.0 if step <= 12 else 4.0) / (1.8 if slots == 2 else 1.0))
            found.take_report(number, step, sum(seconds[1]) + sum(seconds[2]), slots)
        for slots, epochs in seconds.items():
            found.take(number + 9 * slots, SegmentPace(number, slots, len(epochs), sum(epochs)))
    found.learn()
    assert found.speedup(2) == pytest.approx(1.8, rel=0.05)


def test_a_trial_that_keeps_its_pace_where_others_change_is_not_changed_by_a_resize() -> None:
    found = Throughputs()
    for number, factor in enumerate((0.5, 0.5, 0.5, 1.0)):
        trained = 0.0
        for step in range(1, 31):
            trained += 8.0 * (factor if step > 12 else 1.0) / (2.0 if step > 22 else 1.0)
            found.take_report(number, step, trained, 2 if step > 22 else 1)
    assert [len(found._regimes[number].changes) for number in range(4)] == [1, 1, 1, 0]


def test_a_name_on_a_report_that_says_nothing_is_not_lost() -> None:
    trial = named((5, 8.0, "batch 8"))
    assert not trial.take(5, 41.0, 1, "batch 32"), "the same step again"
    assert trial.take(6, 42.0, 1) and len(trial.changes) == 1


def test_a_schedule_of_several_changes_is_learned_and_used() -> None:
    plan: list[tuple[int, float, str | None]] = [(10, 8.0, "a"), (10, 4.0, "b"), (10, 1.0, "c")]
    known = learn_schedule([named(*plan) for _ in range(3)])
    assert known == (pytest.approx((10, 0.5)), pytest.approx((20, 0.25)))
    assert changes_ahead(named(*plan[:2]), known) == known[1:]
    view = TrialView(
        3, "running", 1, [Report(5, 0.5, 40.0)], step_seconds=8.0, changes_ahead=known
    )
    assert view.seconds_to(30) == pytest.approx(5 * 8 + 10 * 4 + 10)
    assert view.seconds_to(12) == pytest.approx(5 * 8 + 2 * 4)


def test_one_report_after_a_change_that_others_have_shown_the_remaining_time_is_right() -> None:
    found = Throughputs()
    for number, change in enumerate((29, 30, 31)):
        trained = 0.0
        for step in range(1, EPOCHS + 1):
            trained += 5.0 if step > change else 10.0
            found.take_report(number, step, trained, 1)
    for at in (8, 22, 31):
        trained = sum(5.0 if step > 30 else 10.0 for step in range(1, at + 1))
        ahead = found.changes_ahead(3)
        view = TrialView(
            3, "running", 1, [Report(at, trained, 0.5)], step_seconds=10.0, changes_ahead=ahead
        )
        left = sum(5.0 if step > 30 else 10.0 for step in range(at + 1, EPOCHS + 1))
        assert view.seconds_to(EPOCHS) == pytest.approx(left, rel=0.05)
    assert TrialView(0, "ready").seconds_to(9) is None
    assert TrialView(0, "ready").seconds_to(9, 2.0) == 18.0


_CHANGES = st.lists(st.tuples(st.floats(0, 100), st.floats(0.2, 5.0)), max_size=3).map(sorted)


@given(step=st.floats(0, 100), more=st.floats(0, 100), pace=st.floats(0.1, 10), changes=_CHANGES)
def test_the_step_after_some_seconds_is_the_inverse_of_the_seconds_to_a_step(
    step: float, more: float, pace: float, changes: list[tuple[float, float]]
) -> None:
    seconds = seconds_between(step, step + more, pace, changes)
    assert step_after(seconds, step, pace, changes) == pytest.approx(step + more)
    assert seconds_between(step + more, step, pace) == 0.0


def test_a_forecast_knows_the_change_that_others_have_shown() -> None:
    rows = [
        ReportRow(0, number, step, 0.5, 1, 8.0 * min(step, 12) + 4.0 * max(0, step - 12), 0.0)
        for number in range(4)
        for step in range(1, 31 if number else 6)
    ]
    segments = [
        SegmentRow(n, 1, 1, 0.0, position_from=0.0, position_to=5.0, trained=40.0)
        for n in range(4)
    ]
    measured = measure(segments, rows)
    assert measured.changes[0] == (pytest.approx((12, 0.5)),) and not measured.changes[1]
