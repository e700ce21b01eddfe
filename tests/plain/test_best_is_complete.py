"""A plain study that has any report ends with a COMPLETE best trial."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from optuna_deadline import DeadlineGate, DeadlinePruner, DeadlineSampler, best, out_of_time
from optuna_deadline._optuna import constraints
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.study import agreement

pytestmark = pytest.mark.nightly_but(r"^$")  # the PostgreSQL twins

Objective = Callable[[optuna.Trial], float]


def _study(storage: Any, clock: Any, direction: str = "minimize", **kwargs: Any) -> optuna.Study:
    pruner = DeadlinePruner("100s", **kwargs)._start(clock)
    return optuna.create_study(
        storage=storage, study_name="s", load_if_exists=True, direction=direction, pruner=pruner
    )


def _by_callback(clock: Any, *curve: float, seconds: float = 8.0) -> Objective:
    """What an integration does: it knows should_prune() and raises."""

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.set_user_attr("model", f"{trial.number}.json")
        for step in range(100):
            clock.advance(seconds)
            trial.report(curve[min(step, len(curve) - 1)], step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return x

    return objective


@pytest.mark.parametrize("by", ["trial", "sampler"])
def test_the_copy_is_of_a_feasible_trial_and_keeps_its_constraints(clock: Any, by: str) -> None:
    """The second trial reports a better value and violates the constraint."""

    def violated(trial: optuna.trial.FrozenTrial) -> tuple[float]:
        return (-1.0 if trial.number == 0 else 1.0,)

    function = violated if by == "sampler" else None
    study = _study(None, clock)
    study.sampler = DeadlineSampler(optuna.samplers.TPESampler(constraints_func=function))

    def objective(trial: optuna.Trial) -> float:
        if by == "trial":
            key, value = "constraints:size", violated(study.trials[trial.number])[0]
            study._storage.set_trial_system_attr(trial._trial_id, key, value)
        return _by_callback(clock, 1.0 - 0.5 * trial.number, seconds=25.0)(trial)

    with suppress(optuna.TrialPruned):
        study.optimize(objective, callbacks=[DeadlineGate()])
    copied = study.best_trial
    assert copied.user_attrs["optuna_deadline:copy_of"] == 0 == best(study).number
    assert constraints(copied) == [-1.0]


@pytest.mark.parametrize(("direction", "value"), [("minimize", 0.25), ("maximize", 7.0)])
def test_a_trial_that_the_deadline_prunes_has_a_complete_copy(
    storage: str | None, clock: Any, direction: str, value: float
) -> None:
    study = _study(storage, clock, direction)
    study.optimize(_by_callback(clock, 1.0, 0.25, 7.0, 0.5), callbacks=[DeadlineGate()])
    original, copied = study.trials
    assert original.state is TrialState.PRUNED
    assert (study.best_trial.number, study.best_value) == (1, value) == (1, best(study).value)
    assert copied.params == original.params
    assert copied.intermediate_values == original.intermediate_values
    assert copied.user_attrs == {"model": "0.json", "optuna_deadline:copy_of": 0}
    assert (copied.datetime_start, copied.datetime_complete) == (
        original.datetime_start,
        original.datetime_complete,
    )


def test_a_loop_that_asks_out_of_time_needs_no_copy(storage: str | None, clock: Any) -> None:
    study = _study(storage, clock)

    def objective(trial: optuna.Trial) -> float:
        for step in range(100):
            clock.advance(4)
            trial.report(1.0 / (step + 1), step)
            if out_of_time(trial):
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return 1.0 / (step + 1)

    study.optimize(objective, callbacks=[DeadlineGate()])
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert len(study.trials) == 1


def test_a_better_value_that_was_returned_is_the_best(storage: str | None, clock: Any) -> None:
    study = _study(storage, clock)
    study.optimize(lambda trial: 0.1, n_trials=1)
    study.optimize(_by_callback(clock, 0.5), callbacks=[DeadlineGate()])
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]


def test_another_optimize_adds_no_second_copy(storage: str | None, clock: Any) -> None:
    study = _study(storage, clock)
    study.optimize(_by_callback(clock, 0.5), callbacks=[DeadlineGate()])
    agreement.extend(open_table(study), study, "1h")
    study.optimize(_by_callback(clock, 0.9, seconds=1500.0), callbacks=[DeadlineGate()])
    states = [trial.state.name for trial in study.trials]
    assert states[:3] == ["PRUNED", "COMPLETE", "PRUNED"] and states.count("COMPLETE") == 1


def test_each_thread_ends_before_one_is_copied(storage: str | None, clock: Any) -> None:
    study = _study(storage, clock)
    study.optimize(_by_callback(clock, 0.5), n_jobs=3, callbacks=[DeadlineGate()])
    states = [trial.state.name for trial in study.trials]
    assert states.count("COMPLETE") == 1
    assert study.best_value == 0.5


def test_each_process_sees_to_its_own_trials(storage_url: str, clock: Any) -> None:
    study = _study(storage_url, clock)
    other = _study(storage_url, clock)
    busy = other.ask()
    busy.report(0.75, 0)
    study.optimize(_by_callback(clock, 0.5), callbacks=[DeadlineGate()])
    assert study.best_value == 0.5
    busy.report(0.25, 1)
    other.tell(busy, state=TrialState.PRUNED)
    clock.advance(-50)
    other.optimize(_by_callback(clock, 0.9), callbacks=[DeadlineGate()])
    assert other.best_value == 0.25
    copies = [trial for trial in other.trials if "optuna_deadline:copy_of" in trial.user_attrs]
    assert [trial.user_attrs["optuna_deadline:copy_of"] for trial in copies] == [1, 0]


def test_what_never_reported_a_number_cannot_win(storage: str | None, clock: Any) -> None:
    study = _study(storage, clock)
    study.optimize(_by_callback(clock, math.nan, seconds=90.0), callbacks=[DeadlineGate()])
    assert {trial.state for trial in study.trials} == {TrialState.PRUNED}
