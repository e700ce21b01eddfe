"""The rest of a study, simulated from where it stands."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pytest
from histories import Recipe

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.regimes import PaceChange
from optuna_deadline.forecasting.throughput import PRIOR_EXPONENT, PRIOR_EXPONENT_OF_CPUS
from optuna_deadline.history.forecast import forecast
from optuna_deadline.history.records import History
from optuna_deadline.history.series import costs
from optuna_deadline.policies import make_policy
from optuna_deadline.policies.api import Plan, Snapshot
from optuna_deadline.policies.baselines.fifo import Fifo
from optuna_deadline.scenarios.api import change_of
from optuna_deadline.scenarios.comparison import AS_IT_IS, Scenario, WhatIf
from optuna_deadline.scenarios.futures import Change, Draws, make_world, run
from optuna_deadline.scenarios.initial_state import InitialState

RECIPES = [
    Recipe(family="climbing", stopped=0.3),
    Recipe(policy="hermes", stopped=0.5, maximize=False),
    Recipe(policy="asha", stopped=0.6, hosts=2, slots=2, faulty=True),
    Recipe(policy="seer", money=True, stopped=0.4),
]


def ask(history: History, change: Change = AS_IT_IS, draws: int = 2, seed: int = 0) -> WhatIf:
    question = Scenario(history, change, draws=draws, seed=seed)
    return question.answer(list(question.pairs(1e9)))


@pytest.mark.parametrize("later", ["1h", "+60min", 3600, timedelta(hours=1)])
def test_more_time_is_given_as_a_deadline_is(later: Any) -> None:
    assert change_of(None, later, 0, None).seconds == 3600.0
    with pytest.raises(DeadlineError, match="later needs a duration"):
        change_of(None, "2030-01-31T18:00+01:00", 0, None)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.policy)
def test_what_was_used_is_used_and_what_is_in_hand_is_kept(recipe: Recipe) -> None:
    history = recipe.make()
    sign = 1.0 if history.direction == "maximize" else -1.0
    used, told = costs(history), forecast(history)
    answer = ask(history, Change(seconds=100.0, slots=2))
    assert answer.changed is not None and answer.gain is not None
    for side in (answer.as_it_is, answer.changed):
        assert sign * answer.best <= sign * side.low <= sign * side.expected <= sign * side.high
        assert side.slot_hours >= used.slot_hours
    low, high = answer.as_it_is.levels[0], answer.as_it_is.levels[-1]
    assert told.levels[0] <= low <= high <= told.levels[-1], "simulated ends are as forecast"
    if history.budget is not None:
        assert answer.as_it_is.spent is not None and used.spent is not None
        assert used.spent <= answer.as_it_is.spent <= history.budget.amount
    else:
        assert answer.changed.slot_hours > answer.as_it_is.slot_hours


def test_the_same_question_has_the_same_answer_and_another_seed_another() -> None:
    history = RECIPES[0].make()
    assert ask(history, Change(slots=2)) == ask(history, Change(slots=2))
    assert ask(history, seed=1) != ask(history)
    assert ask(history, Change(slots=2)).as_it_is == ask(history).as_it_is, "the same draws"


def test_more_money_is_spent_and_not_more_than_there_is() -> None:
    history = RECIPES[3].make()
    assert history.budget is not None
    more = 0.5 * history.budget.amount
    answer = ask(history, Change(money=more), draws=2)
    assert answer.changed is not None and answer.changed.spent is not None
    assert answer.as_it_is.spent is not None
    assert answer.as_it_is.spent < answer.changed.spent <= history.budget.amount + more


def test_trials_come_to_the_change_of_pace_that_others_have_shown() -> None:
    """An old trial is beyond it, a young one comes to it, and a new one begins as they began."""
    plain = InitialState.of(RECIPES[0].make())
    assert not Draws(plain).draw(0).report_seconds
    old, young = plain.sources[:2]
    change = PaceChange(plain.reports(young)[3] - plain.shift, 0.5)
    schedule = replace(plain.measured, schedule=(change,), changes={old: (), young: (change,)})
    present = replace(plain, measured=schedule)
    rest = Draws(present).draw(0)
    now = present.step_seconds(old) * present.every
    assert rest.report_seconds[old] == pytest.approx([now] * len(rest.curves[old]))
    ahead = present.step_seconds(young) * present.every
    assert rest.report_seconds[young][2:6] == pytest.approx((ahead, ahead, ahead / 2, ahead / 2))
    new = present.report_seconds(old, new=True)
    assert new[2:6] == pytest.approx((2 * now, 2 * now, now, now))


def test_what_steps_are_called_changes_nothing() -> None:
    """Reports every hundred steps, or steps that count from 0."""
    history = RECIPES[0].make()
    plain = ask(history)
    assert asdict(ask(_rename(history, times=1, shift=-1))) == asdict(plain)
    scaled = _rename(history, times=100, shift=0)
    assert InitialState.of(scaled).every == 100
    assert ask(scaled).as_it_is.slot_hours == pytest.approx(plain.as_it_is.slot_hours)


def _rename(history: History, times: int, shift: int) -> History:
    resources = {"min_resource": times, "reduction_factor": 3, "max_resource": 10 * times}
    return replace(
        history,
        reports=tuple(row._replace(step=row.step * times + shift) for row in history.reports),
        segments=tuple(
            row
            if row.position_from is None or row.position_to is None
            else row._replace(
                position_from=row.position_from * times, position_to=row.position_to * times
            )
            for row in history.segments
        ),
        trials=tuple(
            line if line.horizon is None else replace(line, horizon=line.horizon * times + shift)
            for line in history.trials
        ),
        parameters=resources,
    )


def test_gangs_that_were_not_measured_are_as_fast_as_the_planner_assumes() -> None:
    history = RECIPES[0].make()
    assert history.slots and all(slot.device.startswith("cpu:") for slot in history.slots)
    on_gpus = tuple(replace(slot, device=f"gpu:{slot.id}") for slot in history.slots)
    for known, exponent in (
        (history, PRIOR_EXPONENT_OF_CPUS),
        (replace(history, slots=on_gpus), PRIOR_EXPONENT),
    ):
        assert InitialState.of(known).measured.speedup.exponent == exponent


def test_who_trains_goes_on_without_a_start_and_who_has_ended_is_let_alone() -> None:
    history = Recipe(policy="asha", family="climbing", stopped=0.5).make()
    present = InitialState.of(history)
    policy = make_policy(history.policy, history.parameters)
    world = make_world(present, Draws(present).draw(0), AS_IT_IS, policy)
    holders = {line.number: line.slots for line in history.trials if line.owner is not None}
    while len(world.table.segments(present.now + 1e-9)) < len(holders):
        assert world.timeline.advance()
    assert world.timeline.now() == present.now
    owned = {line.number: line.slots for line in world.table.trials() if line.owner is not None}
    assert owned == holders
    while world.working_hosts:
        assert world.timeline.advance()
    ended = {line.number for line in history.trials if not line.alive}
    after = [row for row in world.table.segments() if row.granted > present.now]
    assert ended and not ended & {row.number for row in after}
    assert all(row.at <= world.deadline for row in world.table.reports())


def test_nobody_trains_where_no_worker_is_left_but_one_could_come() -> None:
    history = replace(RECIPES[0].make(), workers=())
    answer = ask(history, Change(slots=4))
    assert answer.as_it_is.new_trials == 0
    assert answer.as_it_is.slot_hours == pytest.approx(costs(history).slot_hours)
    assert answer.changed is not None and answer.changed.slot_hours > answer.as_it_is.slot_hours


def test_a_trial_that_a_person_holds_is_not_trained() -> None:
    history = Recipe(family="climbing", policy="fifo", stopped=0.3).make()
    held = {line.number for line in history.trials if line.alive}
    stopped = replace(
        history,
        trials=tuple(
            replace(line, held=history.now, mode="pause", worker=None, slots=0, owner=None)
            if line.alive
            else line
            for line in history.trials
        ),
    )
    present = InitialState.of(stopped)
    policy = make_policy(history.policy, history.parameters)
    world = make_world(present, Draws(present).draw(0), AS_IT_IS, policy)
    while world.working_hosts:
        assert world.timeline.advance()
    trained = {row.number for row in world.table.segments() if row.granted >= present.now}
    assert held and trained and not held & trained


def test_a_question_without_an_answer_is_refused_in_words() -> None:
    history = RECIPES[0].make()
    with pytest.raises(DeadlineError, match="cannot be taken"):
        Scenario(history, Change(slots=-5))
    with pytest.raises(DeadlineError, match="has ended"):
        Scenario(replace(history, settled=history.now))
    with pytest.raises(DeadlineError, match="after the first reports"):
        Scenario(replace(history, reports=(), segments=()))
    with pytest.raises(DeadlineError, match="other processes"):
        Scenario(replace(history, policy="object:Mine"))


def test_one_end_is_simulated_however_short_the_time() -> None:
    question = Scenario(RECIPES[0].make(), draws=9)
    assert len(list(question.pairs(0.0))) == 1


def test_a_rest_is_simulated_to_its_end_beyond_what_was_known() -> None:
    history = RECIPES[0].make()
    present = InitialState.of(history)
    ends = [
        run(
            present, Draws(present).draw(number), AS_IT_IS,
            lambda: make_policy(history.policy, history.parameters),
        )
        for number in range(3)
    ]  # fmt: skip
    assert len({end.score for end in ends}) > 1, "ends differ from draw to draw"


def test_a_policy_that_takes_long_to_plan_a_large_study_is_asked_less_often() -> None:
    """An answer takes ten seconds, however long the study: its plans here take half a second."""
    history = replace(RECIPES[0].make(), policy="fifo", parameters={})
    last = max(line.number for line in history.trials)
    ended = replace(
        history.trials[0], state="retired", mode="stop", owner=None, slots=0, end_reported=True
    )
    more = tuple(replace(ended, number=last + more) for more in range(1, 200))
    time = 0.0

    class Slow(Fifo):
        def plan(self, snapshot: Snapshot) -> Plan:
            nonlocal time
            time += 0.5
            return super().plan(snapshot)

    def seconds_of(history: History) -> float:
        began = time
        question = Scenario(
            history, Change(seconds=100.0), policy=Slow(), draws=9, clock=lambda: time
        )
        list(question.pairs(10.0))
        return time - began

    assert seconds_of(history) > 40.0
    assert seconds_of(replace(history, trials=(*history.trials, *more))) < 40.0
