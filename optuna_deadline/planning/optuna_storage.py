"""Optuna's own record of a trial's reports: its intermediate values, many at the cost of one.

Optuna stores one value at a time, with six round trips each. The allocation table has the reports
that plans are made by; Optuna's copy is for samplers and dashboards, and whole once a trial ends.

A study that is deleted while processes work on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages._rdb.models import TrialIntermediateValueModel, TrialModel
from optuna.study import Study
from sqlalchemy.dialects import postgresql, sqlite

from optuna_deadline.errors import StudyGone

#: Both have ``ON CONFLICT``.
_INSERT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
#: Rows of one statement: drivers would send each of many parameter sets by itself.
_AT_ONCE = 250


def store_values(storage: BaseStorage, trial_id: int, values: Mapping[int, float]) -> None:
    """Store values of a trial; to store them again changes nothing.

    Args:
        storage: The study's.
        trial_id: The trial.
        values: Those that it does not have yet, by step.

    Raises:
        UpdateFinishedTrialError: The trial has ended.
        KeyError: The trial is gone.
    """
    backend = storage._backend if isinstance(storage, _CachedStorage) else storage
    if isinstance(backend, RDBStorage) and backend.engine.dialect.name in _INSERT:
        _store_at_once(backend, trial_id, values)
        return
    for step, value in values.items():
        storage.set_trial_intermediate_value(trial_id, step, value)


def _store_at_once(backend: RDBStorage, trial_id: int, values: Mapping[int, float]) -> None:
    insert = _INSERT[backend.engine.dialect.name]
    rows = []
    for step, value in values.items():
        stored, kind = TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
        rows.append(
            {
                "trial_id": trial_id,
                "step": step,
                "intermediate_value": stored,
                "intermediate_value_type": kind,
            }
        )
    with backend.engine.begin() as connection:
        found = sa.select(TrialModel.state).where(TrialModel.trial_id == trial_id)
        row = connection.execute(found).first()
        if row is None:
            raise KeyError(f"No trial has the id {trial_id}.")
        backend.check_trial_is_updatable(trial_id, row.state)
        for first in range(0, len(rows), _AT_ONCE):
            some = rows[first : first + _AT_ONCE]
            statement = insert(TrialIntermediateValueModel).values(some)
            try:
                connection.execute(statement.on_conflict_do_nothing())
            except sa.exc.IntegrityError:  # the trial was deleted since the look at it
                raise KeyError(f"No trial has the id {trial_id}.") from None


@contextmanager
def unless_deleted(study: Study) -> Iterator[None]:
    """Tell a deleted study from every other error in what is asked of Optuna.

    Optuna's storages raise KeyError for it and ``Study.tell`` makes a ValueError of that. A
    sampler or an objective may raise the same on its own account, so the storage is asked.

    Args:
        study: The study that the calls in the block are about.

    Raises:
        StudyGone: The study was deleted.
    """
    try:
        yield
    except (KeyError, ValueError):
        if _exists(study):
            raise
        raise StudyGone("The study was deleted while the worker ran.") from None


def _exists(study: Study) -> bool:
    try:
        study._storage.get_study_user_attrs(study._study_id)  # no storage caches these
    except KeyError:
        return False
    return True
