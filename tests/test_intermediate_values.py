"""Optuna's own record of a trial's reports, many at the cost of one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from optuna_deadline.planning.optuna_storage import store_values

VALUES = {0: 0.5, 3: math.nan, 7: math.inf, 8: -math.inf, 9: 1e-300}
Make = Callable[[], BaseStorage | str]


@pytest.fixture(
    params=["memory", "journal", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def study(request: pytest.FixtureRequest, tmp_path: Path) -> optuna.Study:
    """A study on each kind of storage."""
    made: dict[str, Make] = {
        "memory": InMemoryStorage,
        "journal": lambda: JournalStorage(JournalFileBackend(str(tmp_path / "journal"))),
        "sqlite": lambda: request.getfixturevalue("sqlite_url"),
        "postgres": lambda: request.getfixturevalue("postgres_url"),
    }
    return optuna.create_study(storage=made[request.param]())


def test_values_are_as_if_reported_one_by_one(study: optuna.Study) -> None:
    together, single = study.ask(), study.ask()
    store_values(study._storage, together._trial_id, VALUES)
    for step, value in VALUES.items():
        single.report(value, step)
    one, other = (trial.intermediate_values for trial in study.get_trials())
    assert repr(sorted(one.items())) == repr(sorted(other.items()))
    store_values(study._storage, together._trial_id, {})
    store_values(study._storage, together._trial_id, {10: 0.5})
    assert len(study.get_trials()[0].intermediate_values) == 6
    assert len(study.get_trials()[1].intermediate_values) == 5


def test_a_trial_that_has_ended_takes_none(study: optuna.Study) -> None:
    trial = study.ask()
    study.tell(trial, 1.0)
    with pytest.raises(UpdateFinishedTrialError):
        store_values(study._storage, trial._trial_id, VALUES)
    assert not study.get_trials()[0].intermediate_values


def test_values_stored_again_after_a_lost_answer_are_there_once(storage_url: str) -> None:
    study = optuna.create_study(storage=storage_url)
    trial = study.ask()
    for _ in range(2):
        store_values(study._storage, trial._trial_id, VALUES)
    assert len(study.get_trials()[0].intermediate_values) == len(VALUES)
    with pytest.raises(KeyError):
        store_values(study._storage, 1234, VALUES)


def test_hundreds_of_values_cost_a_few_statements(storage_url: str) -> None:
    study = optuna.create_study(storage=storage_url)
    trial = study.ask()
    statements: list[str] = []  # once for each set of parameters: drivers send them one by one
    engine = study._storage._backend.engine  # type: ignore[attr-defined]

    def note(c: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        statements.extend([statement] * (len(parameters) if isinstance(parameters, list) else 1))

    sa.event.listen(engine, "before_cursor_execute", note)
    store_values(study._storage, trial._trial_id, {step: 0.5 for step in range(500)})
    assert len(statements) == 3, statements
    assert len(study.get_trials()[0].intermediate_values) == 500


@pytest.mark.postgres
def test_a_trial_that_is_deleted_between_two_statements_is_gone(postgres_url: str) -> None:
    study = optuna.create_study(storage=postgres_url)
    trial = study.ask()
    backend = study._storage._backend  # type: ignore[attr-defined]

    def delete(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO trial_intermediate_values"):
            optuna.delete_study(study_name=study.study_name, storage=postgres_url)

    sa.event.listen(backend.engine, "before_cursor_execute", delete)
    with pytest.raises(KeyError, match="No trial has the id"):
        store_values(study._storage, trial._trial_id, VALUES)
