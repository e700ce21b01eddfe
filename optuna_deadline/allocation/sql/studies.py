"""SQL on the row of a study: its deadline and its terms.

Each function takes a connection in AUTOCOMMIT or in a transaction of the caller's. A study is
looked up by its id where the table stands beside Optuna's, by its name where ``table=`` named a
database for the table alone: such a database numbers the studies itself, and ``identity`` says
whether the row is the study's own.

SQL on the rungs: what each trial reported first at or past each milestone.
"""

from __future__ import annotations

import functools
import json
import math
import uuid
from typing import Any

import sqlalchemy as sa
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.study import Study
from sqlalchemy.dialects import postgresql, sqlite

from optuna_deadline.allocation.sql.database.engine import table_url
from optuna_deadline.allocation.sql.database.schema import rung, rung_total, study
from optuna_deadline.allocation.sql.database.transaction import database_now
from optuna_deadline.errors import DeadlineError


def insert_if_absent(connection: sa.Connection, table: sa.Table, rows: list[Any]) -> None:
    """Insert rows, and keep those that exist, in one statement."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).values(rows).on_conflict_do_nothing())


def own_id(connection: sa.Connection, study_: Study) -> int | None:
    """Optuna's id of the study where the table stands beside Optuna's, else None.

    Raises:
        DeadlineError: Optuna keeps other studies in this database, but not this one.
    """
    storage = study_._storage
    backend = storage._backend if isinstance(storage, _CachedStorage) else storage
    if isinstance(backend, (RDBStorage, InMemoryStorage)):
        own: sa.URL = table_url(study_)
        if own == connection.engine.url:
            return study_._study_id
    if not sa.inspect(connection).has_table("studies"):
        return None
    # The same database through another driver, or that behind a gRPC proxy.
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
    """The study's row if there is one, and the time, both the database's."""
    by_name = study_id is None
    row = connection.execute(_SELECT_BY[by_name], {"key": name if by_name else study_id}).one()
    return (None if row.study_id is None else row), float(row.now)


def select_all(connection: sa.Connection) -> tuple[list[sa.Row[Any]], float]:
    """The rows of all studies by their names, and the time, both the database's."""
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
    """Fix the terms of a study, unless they are; the caller reads which terms hold.

    A row without a key in ``values`` gets one.
    """
    values = {"key": new_key(), **values}
    if study_id is not None:
        # Optuna's study of this name has this id: a row with another one outlived its study.
        connection.execute(
            sa.delete(study).where(study.c.name == values["name"], study.c.study_id != study_id)
        )
        values = {**values, "study_id": study_id}
    insert_if_absent(connection, study, [values])


def new_key() -> str:
    """A key that no other study has, whatever its name and database."""
    return str(uuid.uuid4())


def set_key(connection: sa.Connection, study_id: int, key: str) -> None:
    """Give a row of an older version its key, unless it has one; the caller reads which holds."""
    connection.execute(
        sa.update(study).where(study.c.study_id == study_id, study.c.key.is_(None)).values(key=key)
    )


def postpone(
    connection: sa.Connection, study_id: int, deadline: float, duration: float | None
) -> bool:
    """Move the deadline, later only, and open the gate again; False if it was later already.

    The pool that a budget pays for is to be sized anew. As long as that has not been done, workers
    end with the money as it was reckoned before; but not those of a study that had ended.
    """
    funds_end = sa.case((study.c.settled.is_(None), study.c.funds_end), else_=sa.null())
    values: dict[str, Any] = {"duration": duration, "gate_closed": None, "settled": None}
    values |= {"pool_slots": None, "funds_end": funds_end}
    return _move(connection, study_id, study.c.deadline < deadline, deadline, values)


def bring_forward(connection: sa.Connection, study_id: int, deadline: float) -> bool:
    """Move the deadline, earlier only; False if it was earlier already or the study is settled."""
    may = sa.and_(study.c.deadline > deadline, study.c.settled.is_(None))
    return _move(connection, study_id, may, deadline, {})


def _move(
    connection: sa.Connection,
    study_id: int,
    may: sa.ColumnElement[bool],
    deadline: float,
    values: dict[str, Any],
) -> bool:
    """Move the deadline where that may be, and keep the one before: its users go on joining."""
    known = sa.select(study.c.duration, study.c.deadline, study.c.earlier)
    while True:
        row = connection.execute(known.where(study.c.study_id == study_id, may)).first()
        if row is None:
            return False
        before = [*json.loads(row.earlier or "[]"), (row.duration, row.deadline)]
        moved = connection.execute(
            sa.update(study)
            .where(study.c.study_id == study_id, study.c.deadline == row.deadline, may)
            .values(deadline=deadline, earlier=json.dumps(before), **values)
        )
        if moved.rowcount:
            return True


def close_gate(connection: sa.Connection, study_id: int, deadline: float) -> bool:
    """Note that no new trial starts; not if the deadline has moved or the gate is closed."""
    result = connection.execute(
        sa.update(study)
        .where(
            study.c.study_id == study_id,
            study.c.deadline == deadline,
            study.c.gate_closed.is_(None),
        )
        .values(gate_closed=database_now())
    )
    return result.rowcount > 0


def open_gate(connection: sa.Connection, study_id: int) -> bool:
    """Note that new trials start after all; False if the gate was open."""
    result = connection.execute(
        sa.update(study)
        .where(study.c.study_id == study_id, study.c.gate_closed.is_not(None))
        .values(gate_closed=None)
    )
    return result.rowcount > 0


def record(
    connection: sa.Connection, study_id: int, number: int, values: dict[int, float]
) -> None:
    """Record a trial's value at rungs; a value recorded before stays. One statement."""
    newest = sa.select(sa.func.max(rung.c.sequence)).where(rung.c.study_id == study_id)
    rows = [
        {
            "study_id": study_id,
            "rung": index,
            "number": number,
            "value": None if math.isnan(value) else float(value),
            "sequence": sa.func.coalesce(newest.scalar_subquery(), 0) + 1,
        }
        for index, value in values.items()
    ]
    insert_if_absent(connection, rung, rows)


def view(
    connection: sa.Connection, study_id: int, number: int, *, passed: int, maximize: bool
) -> list[sa.Row[Any]]:
    """The deadline, and where a trial stands at the rungs it has passed. One statement.

    The database counts, so that a row per rung crosses the wire whatever the number of trials; and
    it looks at no more values than are better than the trial's own.

    Args:
        connection: A connection in AUTOCOMMIT.
        study_id: The study.
        number: The trial.
        passed: How many rungs it has passed; with 0 the row says nothing of rungs.
        maximize: Whether larger values are better.

    Returns:
        Rows of (deadline, gate_closed, now, rung, better, total): total is the number of values at
        the rung, better that of those strictly better than the trial's own; NaN is worse than
        anything else. Nothing where the study is gone.
    """
    values = {"study_id": study_id, "number": number, "rungs": list(range(passed))}
    return list(connection.execute(_view(maximize), values))


@functools.cache
def _view(maximize: bool) -> sa.Select[Any]:
    own, peer = rung.alias("own"), rung.alias("peer")
    here = (peer.c.study_id == own.c.study_id, peer.c.rung == own.c.rung)
    beats = peer.c.value > own.c.value if maximize else peer.c.value < own.c.value
    # NULL stands for NaN, and a comparison with it is never true. An OR would keep the database
    # from finding the better ones by the index.
    count = sa.select(sa.func.count()).where(*here)
    better = sa.case(
        (own.c.value.is_(None), count.where(peer.c.value.is_not(None)).scalar_subquery()),
        else_=count.where(beats).scalar_subquery(),
    )
    of_trial = sa.and_(
        own.c.study_id == study.c.study_id,
        own.c.number == sa.bindparam("number", type_=sa.Integer),
        # Spelled out rather than `<`, so that each is a look-up by the primary key.
        own.c.rung.in_(sa.bindparam("rungs", type_=sa.Integer, expanding=True)),
    )
    counted = sa.and_(rung_total.c.study_id == own.c.study_id, rung_total.c.rung == own.c.rung)
    return (
        sa.select(
            study.c.deadline,
            study.c.gate_closed,
            database_now().label("now"),
            own.c.rung,
            better.label("better"),
            rung_total.c.total,
        )
        .select_from(study.outerjoin(own, of_trial).outerjoin(rung_total, counted))
        .where(study.c.study_id == sa.bindparam("study_id", type_=sa.Integer))
    )


def new_values(connection: sa.Connection, study_id: int, after: int) -> list[sa.Row[Any]]:
    """The deadline, and what was recorded at the rungs since a process last asked. One statement.

    Two processes that record at the same time may give the same number to two rows. A process that
    has read the first does not read the second, and then knows fewer values than are counted.

    Args:
        connection: A connection in AUTOCOMMIT.
        study_id: The study.
        after: The largest sequence that the process knows; -1 reads all rows.

    Returns:
        Rows of (deadline, gate_closed, now, total, rung, number, value, sequence): total is the
        number of values at all rungs; a single row without a rung where nothing is new. Nothing
        where the study is gone.
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
            study.c.gate_closed,
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
