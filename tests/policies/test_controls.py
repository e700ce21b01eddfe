"""Controls: trials by lot that train to their ends, and what they say of the rungs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies import Plan, Report, Retire, Run, Snapshot, TrialView
from optuna_deadline.policies.freeze_thaw.controls import Controls, choose_controls
from optuna_deadline.policies.freeze_thaw.policy import FreezeThaw
from optuna_deadline.policies.freeze_thaw.schedule import (
    PoolCosts,
    RemainingBudget,
    longest_schedule,
)
from optuna_deadline.policies.trial_index import TrialIndex

RUNGS = (1, 3, 9, 27)


def trial(number: int, *scores: float, state: str = "paused") -> TrialView:
    """Scores at the rungs 1, 3, 9, 27, as far as there are any."""
    reports = tuple(
        Report(step, score, float(step)) for step, score in zip(RUNGS, scores, strict=False)
    )
    if len(scores) == len(RUNGS):
        state = "complete"
    return TrialView(number, state, 0, reports, horizon=27, step_seconds=1.0)


def lots(trials: list[TrialView], room: int = 1, abreast: int = 1) -> Controls:
    view = TrialIndex(1, 3).update(tuple(trials))
    return choose_controls(view, RUNGS, trials, room, abreast)


def chosen(first: int) -> list[TrialView]:
    """Eight that go as far as the third rung; six more that the first one stopped."""
    went = [trial(first + n, 0.5 + n / 100, 0.6 + n / 100, 0.7 + n / 100) for n in range(8)]
    return [*went, *(trial(first + 8 + n, 0.2 + n / 100) for n in range(6))]


slow = trial(0, 0.1, 0.3, 0.9)
slow_too = [trial(n, 0.1 + n / 100, 0.3, 0.9) for n in (1, 2)]
beaten = trial(0, 0.1, 0.2, 0.3)


def test_without_the_time_for_one_nobody_is_a_control() -> None:
    assert lots([slow, *chosen(1)], room=0) == Controls()


def test_the_first_trials_are_controls_and_are_spared() -> None:
    drawn = lots([trial(n, 0.1) for n in range(20)], room=3, abreast=2)
    assert [control.number for control in drawn.training] == [0, 1]
    assert drawn.spared == set(range(5)), "the two that a doubt would call for are kept too"
    assert drawn.undecided == 0


def test_controls_that_stay_behind_speak_for_the_ranks() -> None:
    drawn = lots([beaten, *chosen(1)])
    assert [control.number for control in drawn.training] == [0] and not drawn.undecided


def test_one_that_overtakes_calls_for_another_but_decides_nothing() -> None:
    drawn = lots([slow, *(trial(n, 0.1) for n in (1, 2)), *chosen(3)], abreast=3)
    assert [control.number for control in drawn.training] == [0, 1]
    assert not drawn.undecided


def test_rungs_that_three_controls_speak_against_do_not_decide() -> None:
    drawn = lots([slow, *slow_too, *chosen(3)], abreast=3)
    assert drawn.undecided == 2, "at the third rung they stand in front"


def test_who_diverged_overtakes_nobody() -> None:
    gone = [replace(t, reports=t.reports[:2]) for t in chosen(1)]
    broken = [
        replace(t, reports=(*t.reports, Report(9, -float("inf"), 9.0))) for t in gone if t.step > 1
    ]
    assert not lots([beaten, *broken]).undecided


scores = st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=4)


@given(st.lists(scores, min_size=3, max_size=20), st.integers(1, 3))
@settings(deadline=None)
def test_lots_are_never_drawn_by_rank(curves: list[list[float]], room: int) -> None:
    trials = [trial(n, *curve) for n, curve in enumerate(curves)]
    drawn = lots(trials, room, abreast=99)
    numbers = [control.number for control in drawn.training]
    assert numbers == sorted(numbers) and all(number < room + 2 for number in numbers)
    assert 0 <= drawn.undecided < len(RUNGS)


@given(st.lists(st.floats(0, 1, allow_nan=False), min_size=3, max_size=20), st.integers(1, 3))
def test_whose_order_stays_is_never_spoken_against(tops: list[float], room: int) -> None:
    trials = [trial(n, top, top + 1, top + 2) for n, top in enumerate(tops)]
    assert lots(trials, room).undecided == 0


def test_rungs_that_do_not_decide_let_all_go_on() -> None:
    pool = PoolCosts(8, 8, Speedup({}), 1.0, 0.0)
    course = longest_schedule(
        pool, RUNGS, [1] * 9, 1 / 3, RemainingBudget(200.0, newcomers=0), undecided=2
    )
    assert course.counts[0] >= course.counts[1] == course.counts[2] > course.counts[3]


def plan(trials: list[TrialView], left: float = 400.0) -> Plan:
    snapshot = Snapshot(
        now=600.0, started=0.0, deadline=600.0 + left, capacity=1, largest_gang=1,
        trials=tuple(trials),
    )  # fmt: skip
    return FreezeThaw(most_trials=len(trials)).plan(snapshot)


def running(plan: Plan) -> list[int]:
    return [number for number, order in plan.orders.items() if isinstance(order, Run)]


class TestPlans:
    def test_a_control_trains_before_those_with_better_ranks(self) -> None:
        assert running(plan([trial(0, 0.1), *chosen(1)])) == [0]

    def test_where_ranks_mislead_lots_decide(self) -> None:
        """Trial 3 is the worst that waits at the first rung, and 17 the best at the third."""
        waiting = [*(trial(n, 0.1 + n / 1000) for n in range(3, 10)), *chosen(10)]
        turned = [trial(n, 0.1, 0.3, 0.9, 0.95) for n in range(3)]
        behind = [trial(n, 0.1, 0.2, 0.3, 0.35) for n in range(3)]
        assert running(plan([*turned, *waiting], left=60.0)) == [3]
        assert running(plan([*behind, *waiting], left=60.0)) == [17]

    def test_a_control_to_come_is_not_retired(self) -> None:
        crowd = [trial(n, 0.5 + n / 1000) for n in range(200)]
        orders = plan([*(trial(n, 0.0) for n in range(3)), *crowd[3:]], left=30.0).orders
        assert any(isinstance(order, Retire) for order in orders.values())
        assert not any(isinstance(orders[number], Retire) for number in range(3))
