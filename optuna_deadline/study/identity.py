"""Which row belongs to a study, and the random key that distinguishes studies of one name.

Beside Optuna's tables, a row has Optuna's id. A database named by ``storage=`` numbers its studies
itself and knows only their names, and a study that was deleted and created again has the same
name. There an attribute of the Optuna study also holds the row's key. The attribute is written
first, under a lock, so a row with another key belongs to another study.
"""

from __future__ import annotations

from typing import Any

from optuna.study import Study

from optuna_deadline._optuna import id_of, storage_of
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.errors import DeadlineError, StudyGone
from optuna_deadline.study import rows as studies

_ATTRIBUTE = "optuna_deadline:key"
#: Of the processes that assign rows to studies.
_QUEUE = 0x0D_EAD_14E
_IDLE = 10.0  # seconds: Optuna's storage is written between two statements


def find_row(
    database: Database, tx: Transaction, study_: Study
) -> tuple[studies.StudyRow | None, float]:
    """The study's own row, if there is one, and the database's time.

    Raises:
        StudyGone: The study was deleted.
    """
    study_id = studies.own_id(database, study_)
    row, now = studies.select(tx, study_id, study_.study_name)
    if row is not None and study_id is None and not _is_of(row, study_):
        row = None
    return row, now


def insert_terms(
    database: Database, tx: Transaction, study_: Study, values: dict[str, Any]
) -> None:
    """Store the terms of a study unless another process has; the caller then reads them.

    Args:
        database: The database.
        tx: Statements of which each is alone.
        study_: The study.
        values: The row's columns, without id and key.

    Raises:
        DeadlineError: Workers still train another study of that name.
        StudyGone: The study was deleted.
    """
    study_id = studies.own_id(database, study_)
    if study_id is not None:
        studies.insert(tx, study_id, values)
        return
    with database.begin(studies.ANY_STUDY, "", _QUEUE, _IDLE) as locked:
        row, _ = studies.select(locked, None, study_.study_name)
        if row is not None and _is_of(row, study_):
            return
        if row is not None:
            _delete(database, locked, row)
        values = {**values, "key": studies.new_key()}
        _write(study_, values["key"])
        studies.insert(locked, None, values)


def key_of(database: Database, tx: Transaction, study_: Study) -> str:
    """The key of a study with terms.

    Raises:
        StudyGone: The study was deleted.
    """
    row, _ = find_row(database, tx, study_)
    if row is None:
        raise StudyGone.named(study_.study_name)
    return str(row.key)


def _is_of(row: studies.StudyRow, study_: Study) -> bool:
    """Whether a row that was found by its name belongs to the study."""
    return bool(row.key == _read(study_))


def _delete(database: Database, tx: Transaction, row: studies.StudyRow) -> None:
    """Delete the rows of a deleted study, as the foreign key beside Optuna's tables would have."""
    if studies.has_live_workers(tx, row.study_id):
        raise DeadlineError(
            f"Workers still train another study named {row.name!r} whose table is in "
            f"{database.url}: stop them, wait until the leases of dead ones expire, "
            "or name another database with storage=URL."
        )
    studies.delete(tx, row.study_id)


def _read(study_: Study) -> str | None:
    try:
        found = storage_of(study_).get_study_system_attrs(id_of(study_)).get(_ATTRIBUTE)
    except KeyError:
        raise StudyGone.named(study_.study_name) from None
    return None if found is None else str(found)


def _write(study_: Study, key: str) -> None:
    try:
        storage_of(study_).set_study_system_attr(id_of(study_), _ATTRIBUTE, key)
    except KeyError:
        raise StudyGone.named(study_.study_name) from None
