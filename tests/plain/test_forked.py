"""A study that a process has used before it forks."""

from __future__ import annotations

import multiprocessing
import pickle

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from optuna_deadline import DeadlinePruner, DeadlineSampler

pytestmark = pytest.mark.nightly_but(r"postgres")
_FORK = multiprocessing.get_context("fork")


def _objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", 0, 1)
    for step in range(1, 9):
        trial.report(x + 1 / step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x


def test_copies_of_a_sampler_draw_apart_where_another_trial_runs(sqlite_url: str) -> None:
    sampler = DeadlineSampler(RandomSampler(seed=1))
    study = optuna.create_study(storage=sqlite_url, study_name="s", sampler=sampler)
    study.ask().suggest_float("x", 0, 1)
    stored = pickle.dumps(sampler)
    drawn = []
    for running in (False, True):
        for trial in [] if running else study.get_trials():
            study.tell(trial.number, state=TrialState.FAIL)
        study.sampler = pickle.loads(stored)
        drawn.append(study.ask().suggest_float("x", 0, 1))
    study.sampler = sampler
    assert study.ask().suggest_float("x", 0, 1) == drawn[0] != drawn[1]


def test_it_goes_on_in_each_process(storage_url: str) -> None:
    study = optuna.create_study(
        storage=storage_url, pruner=DeadlinePruner("1h"), sampler=DeadlineSampler(seed=1)
    )
    study.optimize(_objective, n_trials=4)
    children = [
        _FORK.Process(target=study.optimize, args=(_objective,), kwargs={"n_trials": 20})
        for _ in range(3)
    ]
    for child in children:
        child.start()
    study.optimize(_objective, n_trials=20)
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert len({trial.params["x"] for trial in study.trials}) == 84
