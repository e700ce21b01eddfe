"""What DeadlineSampler shows another sampler: trials that have ended as they would."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import sqlalchemy as sa
from clocks import FakeClock
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_deadline import DeadlinePruner, DeadlineSampler
from optuna_deadline._optuna import constraints
from optuna_deadline.errors import DeadlineError
from optuna_deadline.samplers import Situation
from optuna_deadline.samplers._prospects import by_dates

SPACE: dict[str, BaseDistribution] = {"x": FloatDistribution(0, 1)}


class Watcher(RandomSampler):
    """Remembers what it was shown, and writes something of its own."""

    shown: list[FrozenTrial]

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        self.shown = study.get_trials()
        study._storage.set_trial_system_attr(trial._trial_id, "mark", "made")
        return super().sample_relative(study, trial, search_space)


class WatchingTPE(TPESampler):
    """Remembers what it was shown."""

    shown: list[FrozenTrial]

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        self.shown = study.get_trials()
        return super().infer_relative_search_space(study, trial)


def _trial(state: TrialState, reports: Mapping[int, float], x: float = 0.5) -> FrozenTrial:
    value = reports[max(reports)] if state == TrialState.COMPLETE else None
    return create_trial(
        state=state,
        value=value,
        params={"x": x},
        distributions=SPACE,
        intermediate_values=dict(reports),
    )


def _shown(
    trials: list[FrozenTrial],
    situation: Situation,
    direction: str = "maximize",
    floor: float = 0.0,
) -> list[FrozenTrial]:
    """What the wrapped sampler sees beside the trial that it is asked for."""
    watcher = Watcher()
    study = optuna.create_study(
        direction=direction,
        sampler=DeadlineSampler(watcher, floor=floor, look=lambda *_: situation),
    )
    study.add_trials(trials)
    before = study.get_trials()
    study.ask().suggest_float("x", 0, 1)
    assert study.trials[:-1] == before  # it is only shown
    assert study.trials[-1].system_attrs["mark"] == "made"  # and what is written is written
    return watcher.shown[: len(trials)]


CALM = Situation(math.inf, None, {})
ALONG = {1: 0.5, 2: 0.7, 4: 0.8}
WHOLE = {**ALONG, 8: 0.85}


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.PRUNED])
def test_who_has_not_ended_is_shown_with_what_it_would_come_to(state: TrialState) -> None:
    whole, cut = _shown([_trial(TrialState.COMPLETE, WHOLE), _trial(state, ALONG)], CALM)
    assert (whole.state, whole.value) == (TrialState.COMPLETE, 0.85)
    assert cut.state == TrialState.COMPLETE and cut.value is not None
    assert 0.8 <= cut.value <= 1.0


def test_to_minimize_is_the_same_upside_down() -> None:
    trials = [_trial(TrialState.COMPLETE, WHOLE), _trial(TrialState.RUNNING, ALONG)]
    mirrored = [
        _trial(one.state, {k: -v for k, v in one.intermediate_values.items()}) for one in trials
    ]
    up = [one.value for one in _shown(trials, CALM)]
    down = [one.value for one in _shown(mirrored, CALM, "minimize")]
    assert [-value for value in down if value is not None] == up


def test_near_the_deadline_who_is_fast_is_worth_more() -> None:
    fast = _trial(TrialState.COMPLETE, {1: 0.5, 2: 0.6, 4: 0.65, 8: 0.7}, x=0.1)
    slow = _trial(TrialState.COMPLETE, {1: 0.2, 2: 0.4, 4: 0.6, 8: 0.9}, x=0.9)
    seconds = {0: 1.0, 1: 4.0}

    def values(left: float) -> list[float | None]:
        return [one.value for one in _shown([fast, slow], Situation(left, 8, seconds))]

    assert values(100.0) == [0.7, 0.9]
    assert values(8.0) == [0.7, 0.4]
    assert values(4.5) == [0.65, 0.2]
    assert values(2.0) == [0.6, None]  # the slow one would not report once


@pytest.mark.parametrize("first", [0, 1, 1000])
def test_steps_are_counted_from_the_first(first: int) -> None:
    usual = [{1: 0.5, 2: 0.6, 3: 0.65, 4: 0.7}, {1: 0.2, 2: 0.4, 3: 0.6, 4: 0.9}]
    trials = [
        _trial(TrialState.COMPLETE, {first - 1 + k: value for k, value in one.items()})
        for one in usual
    ]
    begin = datetime(2026, 1, 1)
    for trial, seconds in zip(trials, (4, 16), strict=True):
        trial.datetime_start, trial.datetime_complete = begin, begin + timedelta(seconds=seconds)
    seconds = by_dates([_numbered(trial, number) for number, trial in enumerate(trials)], begin)
    assert seconds == {0: 1.0, 1: 4.0}
    shown = _shown(trials, Situation(8.0, None, seconds))
    assert [one.value for one in shown] == [0.7, 0.4]


def _numbered(trial: FrozenTrial, number: int) -> FrozenTrial:
    numbered = copy.copy(trial)
    numbered.number = number
    return numbered


def test_what_cannot_be_learned_from_stays_or_is_worst() -> None:
    silent = create_trial(value=0.3, params={"x": 0.5}, distributions=SPACE)
    failed = _trial(TrialState.FAIL, ALONG)
    diverged = _trial(TrialState.RUNNING, {1: math.nan})
    shown = _shown([silent, failed, diverged, _trial(TrialState.RUNNING, ALONG)], CALM)
    assert [one.state.name for one in shown] == ["COMPLETE", "FAIL", "PRUNED", "COMPLETE"]
    assert shown[0].value == 0.3 and not shown[2].intermediate_values


def test_a_part_of_the_draws_sees_the_best_reports() -> None:
    long = Situation(math.inf, 64, {})
    trials = [_trial(TrialState.RUNNING, ALONG), _trial(TrialState.PRUNED, {1: 0.6, 2: 0.5})]
    reported = _shown(trials, long, floor=1.0)
    assert [(one.state, one.value) for one in reported] == [
        (TrialState.COMPLETE, 0.8),
        (TrialState.COMPLETE, 0.6),
    ]
    forecast = _shown(trials, long, floor=0.0)[0].value
    assert forecast is not None and forecast > 0.8


def test_after_the_deadline_the_reports_are_shown() -> None:
    trials = [_trial(TrialState.RUNNING, ALONG)]
    assert _shown(trials, Situation(-1.0, None, {}))[0].value == 0.8


def test_a_steep_start_far_behind_is_not_taken_for_the_best() -> None:
    ahead = [_trial(TrialState.RUNNING, {1: 0.70 + x, 2: 0.75 + x}, x) for x in (0.0, 0.01, 0.02)]
    behind = _trial(TrialState.RUNNING, {1: 0.0, 2: 0.6}, 0.9)
    *values, last = [
        one.value or 0.0 for one in _shown([*ahead, behind], Situation(math.inf, 64, {}))
    ]
    assert last <= min(values)


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_tpe_learns_from_paused_trials_as_from_complete_ones(floor: float) -> None:
    def suggested(state: TrialState, sampler: BaseSampler) -> list[float]:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.ask()  # before others run, so that the seed counts
        study.add_trials(_trial(state, {1: x, 2: x}, x) for x in np.linspace(0, 1, 12).tolist())
        return [study.ask().suggest_float("x", 0, 1) for _ in range(3)]

    ours = DeadlineSampler(TPESampler(seed=1), floor=floor, look=lambda *_: CALM)
    complete = suggested(TrialState.COMPLETE, TPESampler(seed=1))
    assert suggested(TrialState.RUNNING, ours) == complete
    assert suggested(TrialState.RUNNING, TPESampler(seed=1)) != complete


def test_the_deadline_is_the_studys_own(clock: FakeClock) -> None:
    watcher = Watcher()
    pruner = DeadlinePruner(timedelta(minutes=59))._start(clock)
    study = optuna.create_study(
        direction="maximize", sampler=DeadlineSampler(watcher, floor=0.0), pruner=pruner
    )
    pruner._terms(study)
    slow = _trial(TrialState.COMPLETE, WHOLE)
    slow.datetime_start = slow.datetime_complete
    assert slow.datetime_complete is not None
    slow.datetime_start = slow.datetime_complete - timedelta(hours=4)  # half an hour a step
    study.add_trial(slow)
    study.ask().suggest_float("x", 0, 1)
    assert watcher.shown[0].value == pytest.approx(0.5)  # one step: two take an hour


def test_a_study_without_a_deadline_gets_no_table_of_ours(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'plain.db'}"
    study = optuna.create_study(storage=url, sampler=DeadlineSampler())
    study.add_trial(_trial(TrialState.PRUNED, ALONG))
    study.ask().suggest_float("x", 0, 1)
    names = sa.inspect(sa.create_engine(url)).get_table_names()
    assert not [name for name in names if "deadline" in name]


def test_what_is_no_sampler_is_refused() -> None:
    with pytest.raises(DeadlineError, match="'tpe' is not a sampler: give an object such as"):
        DeadlineSampler("tpe")  # type: ignore[arg-type]


@pytest.mark.parametrize("floor", [-0.1, 1.1, math.nan])
def test_a_floor_that_is_no_part_is_refused(floor: float) -> None:
    with pytest.raises(DeadlineError, match="from 0 to 1"):
        DeadlineSampler(floor=floor)


def _distance(trial: FrozenTrial) -> tuple[float]:
    if trial.params["x"] > 0.9:
        raise KeyError("set at the end of a training")
    return (trial.params["x"] - 0.5,)


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_a_paused_trial_is_shown_with_the_constraints_that_it_would_have(floor: float) -> None:
    trials = [_trial(TrialState.RUNNING, ALONG, x) for x in (0.4, 0.6, 1.0)]
    sampler = WatchingTPE(constraints_func=_distance)
    study = optuna.create_study(
        direction="maximize",
        sampler=DeadlineSampler(sampler, floor=floor, look=lambda *_: CALM),
    )
    study.add_trials(trials)
    study.ask().suggest_float("x", 0, 1)
    feasible, infeasible, unknown = sampler.shown[:3]
    assert constraints(feasible)[0] < 0 < constraints(infeasible)[0]
    assert feasible.state.is_finished() and infeasible.state.is_finished()
    assert unknown.state == TrialState.RUNNING  # TPE leaves it out
