"""The policy ``pruner``: what the rule says of a snapshot, and no memory that changes it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.policies import Pause, Plan, Report, Retire, Snapshot, TrialView
from optuna_deadline.policies.pruner import MeasuredHalving

CURVES = st.lists(st.lists(st.floats(0, 1), max_size=9), min_size=2, max_size=6)


def _trial(number: int, values: list[float], state: str = "running") -> TrialView:
    reports = tuple(Report(step, value, float(step)) for step, value in enumerate(values, start=1))
    return TrialView(number, state, slots=1, reports=reports, step_seconds=1.0)


def _snapshot(trials: list[TrialView], now: float = 0.0) -> Snapshot:
    return Snapshot(now, 0.0, 100.0, capacity=8, largest_gang=8, trials=tuple(trials))


def _retired(plan: Plan) -> set[int]:
    return {number for number, order in plan.orders.items() if isinstance(order, Retire)}


def test_the_worse_half_is_given_up_before_anything_is_known() -> None:
    trials = [_trial(number, [number / 10]) for number in range(6)]
    assert _retired(MeasuredHalving().plan(_snapshot(trials))) == {0, 1, 2}


def test_nothing_is_given_up_where_no_new_trial_could_come_as_far() -> None:
    trials = [_trial(number, [number / 10] * 8) for number in range(6)]
    assert _retired(MeasuredHalving().plan(_snapshot(trials))) != set()
    assert _retired(MeasuredHalving().plan(_snapshot(trials, now=93.0))) == set()


def test_nothing_is_given_up_where_no_trial_is_left_to_start() -> None:
    trials = [_trial(number, [number / 10]) for number in range(6)]
    assert _retired(MeasuredHalving(n_trials=6).plan(_snapshot(trials))) == set()


def test_steps_that_begin_at_zero_are_planned_with() -> None:
    first = [
        replace(_trial(number, []), reports=(Report(0, 0.5, 1.0),), horizon=9, step_seconds=1.0)
        for number in range(3)
    ]
    assert _retired(MeasuredHalving().plan(_snapshot(first))) == set()


@given(CURVES, st.data())
def test_a_plan_depends_on_the_snapshot_alone(
    curves: list[list[float]], data: st.DataObject
) -> None:
    known = MeasuredHalving()
    trials = [_trial(number, []) for number in range(len(curves))]
    for _ in range(4):
        for number, values in enumerate(curves):
            count = data.draw(st.integers(0, len(values)))
            trials[number] = _trial(number, values[:count])
        if data.draw(st.booleans()):
            trials[0] = replace(trials[0], state="failed")
        snapshot = _snapshot(list(trials))
        plan = known.plan(snapshot)
        assert plan == MeasuredHalving().plan(snapshot)
        assert not any(isinstance(order, Pause) for order in plan.orders.values())
