"""Trials of processes that have died do not stay RUNNING."""

from __future__ import annotations

import multiprocessing
import os
from datetime import datetime, timedelta, timezone
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import TrialState

from optuna_deadline import DeadlineGate, DeadlinePruner, DeadlineSampler
from optuna_deadline.errors import DeadlinePassed
from optuna_deadline.rank.processes import own_boot

pytestmark = pytest.mark.skipif(own_boot() is None, reason="only Linux tells processes apart")


def _study(storage: Any) -> optuna.Study:
    return optuna.create_study(
        storage=storage,
        study_name="s",
        load_if_exists=True,
        pruner=DeadlinePruner("1h"),
        sampler=DeadlineSampler(seed=1),
    )


def _die(url: str, *reports: float) -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step, value in enumerate(reports, start=1):
            trial.report(value, step)
        os._exit(9)
        return x

    _study(url).optimize(objective, n_trials=1)


def _killed(url: str, *reports: float) -> None:
    """A process that dies in the middle of a trial."""
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(url, *reports))
    process.start()
    process.join(100)
    assert process.exitcode == 9


def _train(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", 0, 1) + 1.0


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path / 's.db'}"


def test_a_process_that_joins_ends_what_a_dead_one_trained(url: str) -> None:
    _killed(url, 0.5, 0.25)
    _killed(url)
    study = _study(url)
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED, TrialState.RUNNING]
    study.optimize(_train, n_trials=1)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "FAIL", "COMPLETE"]
    assert study.trials[0].value == 0.25


def test_the_gate_ends_what_died_meanwhile_and_its_best_is_complete(url: str) -> None:
    study = _study(url)

    def objective(trial: optuna.Trial) -> float:
        if trial.number == 0:
            _killed(url, 0.5)
        if trial.number == 2:
            trial.study.stop()
        return _train(trial)

    study.optimize(objective, callbacks=[DeadlineGate(dashboard=False)])
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "PRUNED", "COMPLETE", "COMPLETE"]
    assert study.best_trial.user_attrs == {"optuna_deadline:copy_of": 1}


def test_what_lives_or_cannot_be_known_is_left_alone(url: str) -> None:
    study = _study(url)
    asked = study.ask()  # by a script that ends, for another to tell
    elsewhere = study.ask()
    study._storage.set_trial_system_attr(
        elsewhere._trial_id, "optuna_deadline:process", [1, "another-boot.1.0.ff"]
    )

    def objective(trial: optuna.Trial) -> float:
        _study(url).optimize(_train, n_trials=1)
        return _train(trial)

    study.optimize(objective, n_trials=1, callbacks=[DeadlineGate(dashboard=False)])
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.RUNNING] * 2 + [TrialState.COMPLETE] * 2
    study.tell(asked, 1.0)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_where_the_storage_has_a_heartbeat_optuna_ends_them(url: str) -> None:
    _killed(url, 0.5)
    storage = RDBStorage(url, heartbeat_interval=60, grace_period=120)
    study = _study(storage)

    def objective(trial: optuna.Trial) -> float:
        long_ago = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(hours=1)
        with storage.engine.begin() as connection:
            row = {"trial_id": study.trials[0]._trial_id, "heartbeat": long_ago}
            connection.execute(sa.insert(models.TrialHeartbeatModel.__table__), [row])
        trial.study.stop()
        return _train(trial)

    study.optimize(objective, callbacks=[DeadlineGate(dashboard=False)])
    assert study.trials[0].state is TrialState.FAIL


def test_after_the_deadline_the_next_process_ends_what_the_only_one_left(url: str) -> None:
    _killed(url, 0.5, 0.25)
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql(
            "UPDATE optuna_deadline_study SET started = started - 7200, deadline = deadline - 7200"
        )
    study = _study(url)
    with pytest.raises(DeadlinePassed, match="has passed"):
        study.optimize(_train)
    assert study.trials[0].state is TrialState.PRUNED
    assert not study.get_trials(states=(TrialState.RUNNING,))
    assert study.best_value == 0.25
