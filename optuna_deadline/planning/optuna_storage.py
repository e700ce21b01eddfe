"""Optuna's storage: one trial by number, many values in one statement, deleted studies.

Optuna stores one value at a time, with six round trips each. Plans read reports from the
allocation table. Optuna's copy serves samplers and dashboards and is complete once a trial ends,
except for trials that report more often than anyone looks: see :func:`thinned`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import sqlalchemy as sa
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial
from sqlalchemy.dialects import postgresql, sqlite

from optuna_deadline._optuna import (
    TrialIntermediateValueModel,
    TrialModel,
    behind_cache,
    id_of,
    storage_of,
)
from optuna_deadline.errors import StudyGone

#: The dialects that have ``ON CONFLICT``.
_INSERT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_STOPPED = "optuna_deadline:stopped"
#: Rows of one statement: drivers send each of many parameter sets separately.
_AT_ONCE = 250
#: Reports of each trial that are copied to Optuna: a number, and more per second of training.
_COPIED, _COPIED_A_SECOND = 1000, 10


def read_trial(study: Study, number: int) -> FrozenTrial:
    """A trial by its number, without the study's other trials."""
    storage = storage_of(study)
    return storage.get_trial(storage.get_trial_id_from_study_id_trial_number(id_of(study), number))


def stop_opening(study: Study) -> None:
    """Let no new trial of the study start, in any process, until its deadline is extended."""
    storage_of(study).set_study_system_attr(id_of(study), _STOPPED, True)


def may_open(study: Study) -> bool:
    """Whether no objective has stopped the study."""
    return not storage_of(study).get_study_system_attrs(id_of(study)).get(_STOPPED)


def open_again(study: Study) -> None:
    """Undo :func:`stop_opening`."""
    if not may_open(study):
        storage_of(study).set_study_system_attr(id_of(study), _STOPPED, False)


class TimedReport(Protocol):
    """A report and the seconds of training before it."""

    @property
    def step(self) -> int:
        """The step."""

    @property
    def value(self) -> float:
        """The value."""

    @property
    def trained(self) -> float:
        """Seconds."""


def thinned(reports: Iterable[TimedReport], known: Collection[int]) -> dict[int, float]:
    """The reports to copy to Optuna, by step; a repeated step keeps its first value.

    Optuna reads and copies all values of a trial for each question about it, which takes longer
    than a training whose steps take a millisecond.

    Args:
        reports: Reports of one trial in their order.
        known: Steps that Optuna has.
    """
    copied: dict[int, float] = {}
    for report in reports:
        most = _COPIED + _COPIED_A_SECOND * report.trained
        if report.step not in known and len(known) + len(copied) < most:
            copied.setdefault(report.step, report.value)
    return copied


def store_values(storage: BaseStorage, trial_id: int, values: Mapping[int, float]) -> None:
    """Store intermediate values of a trial; storing them again changes nothing.

    Args:
        storage: The study's storage.
        trial_id: The trial.
        values: Values by step that the storage does not have yet.

    Raises:
        UpdateFinishedTrialError: The trial has ended.
        KeyError: The trial was deleted.
    """
    backend = behind_cache(storage)
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
            except sa.exc.IntegrityError:  # the trial was deleted after the read
                raise KeyError(f"No trial has the id {trial_id}.") from None


@contextmanager
def unless_deleted(study: Study) -> Iterator[None]:
    """Raise StudyGone if a call to Optuna fails because the study was deleted.

    Optuna's storages raise KeyError in this case, and ``Study.tell`` turns it into a ValueError.
    Samplers and objectives may raise the same errors, so the storage is read to tell them apart.

    Args:
        study: The study that the calls in the block use.

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
        storage_of(study).get_study_user_attrs(id_of(study))  # no storage caches these
    except KeyError:
        return False
    return True
