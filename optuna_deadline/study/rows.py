"""SQL on the row of a study, its deadline and terms, and on its rungs.

Each function takes a connection in AUTOCOMMIT or in a transaction of the caller's. A study is
looked up by its id if the table is beside Optuna's, and by its name if ``table=`` names a separate
database. Such a database numbers the studies itself, and ``identity`` checks whether the row is
the study's own. A rung has each trial's first report at or past its milestone.
"""

from __future__ import annotations

import math
import uuid
from typing import Any

import sqlalchemy as sa
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import Study
from sqlalchemy.dialects import postgresql, sqlite

from optuna_deadline._optuna import behind_cache, id_of, storage_of
from optuna_deadline.allocation.database.engine import table_url
from optuna_deadline.allocation.database.limits import database_now
from optuna_deadline.allocation.database.schema import rung, rung_total, study
from optuna_deadline.errors import DeadlineError


def insert_if_absent(connection: sa.Connection, table: sa.Table, rows: list[Any]) -> None:
    """Insert rows in one statement and keep those that exist."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).values(rows).on_conflict_do_nothing())


def own_id(connection: sa.Connection, study_: Study) -> int | None:
    """Optuna's id of the study if the table is beside Optuna's, else None.

    Raises:
        DeadlineError: Optuna keeps other studies in this database, but not this one.
    """
    if isinstance(behind_cache(storage_of(study_)), (RDBStorage, InMemoryStorage)):
        own: sa.URL = table_url(study_)
        if own == connection.engine.url:
            return id_of(study_)
    if not sa.inspect(connection).has_table("studies"):
        return None
    # The same database through another driver, or behind a gRPC proxy.
    studies = sa.table("studies", sa.column("study_id", sa.Integer), sa.column("study_name"))
    found = connection.execute(
        sa.select(studies.c.study_id).where(studies.c.study_name == study_.study_name)
    ).scalar()
    if found is None:
        raise DeadlineError(
            f"Optuna keeps studies in the database {connection.engine.url}, but not "
            f"{study_.study_name!r}; name a database without Optuna's tables with table=URL."
        )
    return int(found)


def select(
    connection: sa.Connection, study_id: int | None, name: str
) -> tuple[sa.Row[Any] | None, float]:
    """The study's row, if there is one, and the database's time."""
    by_name = study_id is None
    row = connection.execute(_SELECT_BY[by_name], {"key": name if by_name else study_id}).one()
    return (None if row.study_id is None else row), float(row.now)


def select_all(connection: sa.Connection) -> tuple[list[sa.Row[Any]], float]:
    """The rows of all studies by name, and the database's time."""
    rows = list(connection.execute(sa.select(study).order_by(study.c.name)))
    return rows, float(connection.execute(sa.select(database_now())).scalar_one())


def _select(where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    now = sa.select(database_now().label("now")).subquery()
    return sa.select(study, now.c.now).select_from(now.outerjoin(study, where))


_SELECT_BY = {
    False: _select(study.c.study_id == sa.bindparam("key", type_=sa.Integer)),
    True: _select(study.c.name == sa.bindparam("key", type_=sa.String)),
}


def insert(connection: sa.Connection, study_id: int | None, values: dict[str, Any]) -> None:
    """Store the terms of a study unless they exist; the caller then reads them.

    A row without a key in ``values`` gets one.
    """
    values = {"key": new_key(), **values}
    if study_id is not None:
        # Optuna's study of this name has this id: a row with another id outlived its study.
        connection.execute(
            sa.delete(study).where(study.c.name == values["name"], study.c.study_id != study_id)
        )
        values = {**values, "study_id": study_id}
    insert_if_absent(connection, study, [values])


def new_key() -> str:
    """A key that no other study has, whatever its name and database."""
    return str(uuid.uuid4())


def postpone(
    connection: sa.Connection, study_id: int, deadline: float, duration: float | None
) -> bool:
    """Move the deadline to a later time and open the gate; False if it is later already.

    The pool of a budget must be sized again. Until then, workers end at the former end of the
    money, except those of a study that had ended.
    """
    funds_end = sa.case((study.c.settled.is_(None), study.c.funds_end), else_=sa.null())
    values: dict[str, Any] = {"duration": duration, "gate_closed": None, "settled": None}
    values |= {"pool_slots": None, "funds_end": funds_end}
    return _move(connection, study_id, study.c.deadline < deadline, deadline, values)


def bring_forward(connection: sa.Connection, study_id: int, deadline: float) -> bool:
    """Move the deadline to an earlier time; False if it is earlier already or settled."""
    may = sa.and_(study.c.deadline > deadline, study.c.settled.is_(None))
    return _move(connection, study_id, may, deadline, {})


def _move(
    connection: sa.Connection,
    study_id: int,
    may: sa.ColumnElement[bool],
    deadline: float,
    values: dict[str, Any],
) -> bool:
    """Move the deadline if possible, and keep the former one: its users continue to join."""
    known = sa.select(study.c.duration, study.c.deadline, study.c.earlier)
    while True:
        row = connection.execute(known.where(study.c.study_id == study_id, may)).first()
        if row is None:
            return False
        before = [*row.earlier, (row.duration, row.deadline)]
        moved = connection.execute(
            sa.update(study)
            .where(study.c.study_id == study_id, study.c.deadline == row.deadline, may)
            .values(deadline=deadline, earlier=before, **values)
        )
        if moved.rowcount:
            return True


def record(
    connection: sa.Connection, study_id: int, number: int, values: dict[int, float]
) -> None:
    """Record a trial's value at rungs in one statement; an earlier value stays."""
    connection.execute(
        _RECORD[connection.dialect.name],
        [
            {
                "study": study_id,
                "rung": index,
                "number": number,
                "value": None if math.isnan(value) else float(value),
            }
            for index, value in values.items()
        ],
    )


def _record(insert: Any) -> sa.Executable:
    """A statement that is compiled once."""
    of_study = sa.bindparam("study", type_=sa.Integer)
    newest = sa.select(sa.func.max(rung.c.sequence)).where(rung.c.study_id == of_study)
    made: sa.Executable = (
        insert(rung)
        .values(
            study_id=of_study,
            rung=sa.bindparam("rung"),
            number=sa.bindparam("number"),
            value=sa.bindparam("value"),
            sequence=sa.func.coalesce(newest.scalar_subquery(), 0) + 1,
        )
        .on_conflict_do_nothing()
    )
    return made


_RECORD = {"postgresql": _record(postgresql.insert), "sqlite": _record(sqlite.insert)}


def new_values(connection: sa.Connection, study_id: int, after: int) -> list[sa.Row[Any]]:
    """Read the deadline and the values at rungs that a process does not know, in one statement.

    Two processes that record at the same time may give the same number to two rows. A process that
    has read the first does not read the second, and then knows fewer values than are counted.

    Args:
        connection: In AUTOCOMMIT.
        study_id: The study.
        after: The largest sequence that the process knows; -1 reads all rows.

    Returns:
        Rows of (deadline, now, total, rung, number, value, sequence): total is the
        number of values at all rungs; a single row without a rung if nothing is new. Empty if the
        study was deleted.
    """
    return list(connection.execute(_NEW_VALUES, {"study_id": study_id, "after": after}))


def _new_values() -> sa.Select[Any]:
    total = sa.select(sa.func.sum(rung_total.c.total)).where(
        rung_total.c.study_id == study.c.study_id
    )
    newer = sa.and_(
        rung.c.study_id == study.c.study_id,
        rung.c.sequence > sa.bindparam("after", type_=sa.Integer),
    )
    return (
        sa.select(
            study.c.deadline,
            database_now().label("now"),
            sa.func.coalesce(total.scalar_subquery(), 0).label("total"),
            rung.c.rung,
            rung.c.number,
            rung.c.value,
            rung.c.sequence,
        )
        .select_from(study.outerjoin(rung, newer))
        .where(study.c.study_id == sa.bindparam("study_id", type_=sa.Integer))
    )


_NEW_VALUES = _new_values()
