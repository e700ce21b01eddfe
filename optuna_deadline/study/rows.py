"""The row of a study, its deadline and terms, and its rungs.

A study is looked up by its id if the table is beside Optuna's, and by its name if ``storage=``
names a separate database. Such a database numbers the studies itself, and ``identity`` checks
whether the row is the study's own. A rung has each trial's first report at or past its milestone.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import Study

from optuna_deadline._optuna import behind_cache, id_of, storage_of
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.columns import Records, content, stored
from optuna_deadline.allocation.database.opening import table_url
from optuna_deadline.allocation.database.schema import rung as schema_rung
from optuna_deadline.allocation.database.schema import study
from optuna_deadline.allocation.database.transaction import Scope, Transaction
from optuna_deadline.allocation.table.deadlines import move_deadline
from optuna_deadline.errors import DeadlineError

#: Of statements that name their study.
ANY_STUDY = Scope("", 0)


@dataclass(frozen=True)
class StudyRow:
    """A study's row; its columns are described in the schema."""

    study_id: int
    name: str
    direction: str
    started: float
    deadline: float
    duration: float | None
    policy: str | None
    parameters: Mapping[str, Any]
    settled: float | None
    money: Mapping[str, Any] | None
    key: str | None
    earlier: tuple[tuple[float | None, float], ...]
    max_slots: int | None


class RungRow(NamedTuple):
    """A value at a rung, with the study's deadline; without a rung if nothing is new."""

    deadline: float
    now: float
    total: int  #: values at all rungs
    rung: int | None
    number: int
    value: float | None
    sequence: int


_STUDIES = Records(StudyRow, study, "s", cached=False)
_DEADLINE, _RUNG = content(study.c.deadline), content(schema_rung.c.rung)


def own_id(database: Database, study_: Study) -> int | None:
    """Optuna's id of the study if the table is beside Optuna's, else None.

    Raises:
        DeadlineError: Optuna keeps other studies in this database, but not this one.
    """
    if isinstance(behind_cache(storage_of(study_)), (RDBStorage, InMemoryStorage)):
        own: sa.URL = table_url(study_)
        if own == database.url:
            return id_of(study_)
    if not sa.inspect(database.engine).has_table("studies"):
        return None
    # The same database through another driver, or behind a gRPC proxy.
    studies = sa.table("studies", sa.column("study_id", sa.Integer), sa.column("study_name"))
    with database.engine.connect() as connection:
        found = connection.execute(
            sa.select(studies.c.study_id).where(studies.c.study_name == study_.study_name)
        ).scalar()
    if found is None:
        raise DeadlineError(
            f"Optuna keeps studies in the database {database.url}, but not "
            f"{study_.study_name!r}; name a database without Optuna's tables with storage=URL."
        )
    return int(found)


def select(tx: Transaction, study_id: int | None, name: str) -> tuple[StudyRow | None, float]:
    """The study's row, if there is one, and the database's time."""
    mine = "s.name = :name" if study_id is None else "s.study_id = :id"
    [row] = tx.rows(
        f"SELECT NOW, {_STUDIES.names} FROM (SELECT 1 AS one) o LEFT JOIN @study s ON {mine}",
        id=study_id, name=name,
    )  # fmt: skip
    return (None if row[1] is None else _STUDIES.of(row[1:])), float(row[0])


def select_all(tx: Transaction) -> tuple[list[StudyRow], float]:
    """The rows of all studies by name, and the database's time."""
    rows = tx.rows(f"SELECT {_STUDIES.names} FROM @study s ORDER BY s.name")
    return _STUDIES.all(rows), float(tx.value("SELECT NOW"))


def insert(tx: Transaction, study_id: int | None, values: Mapping[str, Any]) -> None:
    """Store the terms of a study unless they exist; the caller then reads them.

    A row without a key in ``values`` gets one.
    """
    values = {"key": new_key(), **values}
    if study_id is not None:
        # Optuna's study of this name has this id: a row with another id outlived its study.
        tx.run(
            "DELETE FROM @study WHERE name = :name AND study_id <> :id",
            name=values["name"], id=study_id,
        )  # fmt: skip
        values = {**values, "study_id": study_id}
    row = {name: stored(study.c[name], value) for name, value in values.items()}
    tx.insert("study", [row], unless_there=True)


def add_policy(tx: Transaction, study_id: int, values: Mapping[str, Any]) -> None:
    """Store what a study without a policy lacks, unless another process has."""
    names = ", ".join(f"{name} = :{name}" for name in values)
    row = {name: stored(study.c[name], value) for name, value in values.items()}
    tx.run(
        f"UPDATE @study SET {names} WHERE study_id = :id AND policy IS NULL", id=study_id, **row
    )


def new_key() -> str:
    """A key that no other study has, whatever its name and database."""
    return str(uuid.uuid4())


def delete(tx: Transaction, study_id: int) -> None:
    """Delete a study's row, and what refers to it."""
    tx.run("DELETE FROM @study WHERE study_id = :id", id=study_id)


def has_live_workers(tx: Transaction, study_id: int) -> bool:
    """Whether the lease of a worker of the study has not expired."""
    alive = "SELECT 1 FROM @worker WHERE study_id = :id AND state = 'live' AND lease > NOW LIMIT 1"
    return tx.row(alive, id=study_id) is not None


def postpone(tx: Transaction, study_id: int, deadline: float, duration: float | None) -> bool:
    """Move the deadline to a later time and open the gate; False if it is later already.

    The pool of a budget must be sized again. Until then, workers end at the former end of the
    money, except those of a study that had ended.
    """
    return move_deadline(
        tx, study_id, "deadline < :deadline", ":deadline",
        ", duration = :duration, gate_closed = NULL, settled = NULL, pool_slots = NULL, funds_end "
        "= CASE WHEN settled IS NULL THEN funds_end ELSE NULL END",
        deadline=deadline, duration=duration,
    )  # fmt: skip


def bring_forward(tx: Transaction, study_id: int, deadline: float) -> bool:
    """Move the deadline to an earlier time; False if it is earlier already or settled."""
    may = "deadline > :deadline AND settled IS NULL"
    return move_deadline(tx, study_id, may, ":deadline", deadline=deadline)


def record(tx: Transaction, study_id: int, number: int, values: Mapping[int, float]) -> None:
    """Record a trial's value at rungs; an earlier value stays."""
    for rung, value in values.items():
        tx.run(
            "INSERT INTO @rung (study_id, rung, number, value, sequence) VALUES (:id, :rung, "
            ":number, :value, coalesce((SELECT max(sequence) FROM @rung WHERE study_id = :id), 0) "
            "+ 1) ON CONFLICT DO NOTHING",
            id=study_id, rung=rung, number=number,
            value=None if math.isnan(value) else float(value),
        )  # fmt: skip


def new_values(tx: Transaction, study_id: int, after: int) -> list[RungRow]:
    """Read the deadline and the values at rungs that a process does not know, in one statement.

    Two processes that record at the same time may give the same number to two rows. A process that
    has read the first does not read the second, and then knows fewer values than are counted.

    Args:
        tx: The transaction.
        study_id: The study.
        after: The largest sequence that the process knows; -1 reads all rows.

    Returns:
        The new rows; a single one without a rung if nothing is new. Empty for a deleted study.
    """
    rows = tx.rows(
        "SELECT s.deadline, NOW, coalesce((SELECT sum(t.total) FROM @rung_total t WHERE "
        "t.study_id = s.study_id), 0), r.rung, r.number, r.value, r.sequence FROM @study s LEFT "
        "JOIN @rung r ON r.study_id = s.study_id AND r.sequence > :after WHERE s.study_id = :id",
        id=study_id, after=after,
    )  # fmt: skip
    return [_rung(row) for row in rows]


def _rung(row: tuple[Any, ...]) -> RungRow:
    return RungRow(_DEADLINE(row[0]), float(row[1]), int(row[2]), _RUNG(row[3]), *row[4:])
