"""Reports and progress of a running segment in one statement each, where round trips cost time.

The statement is its own transaction, like a renewal: no client can freeze inside it. It locks the
trial's row under (owner, fence) like :mod:`writes`. Many reports cost as much as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY

from optuna_deadline.allocation.database.limits import database_now
from optuna_deadline.allocation.database.schema import report, segment, trial
from optuna_deadline.allocation.records import Grant, NewReport
from optuna_deadline.allocation.sql.writes import OF_SEGMENT, OF_TRIAL, lease_lost


def add_reports(
    connection: sa.Connection,
    study_id: int,
    worker_id: str,
    grant: Grant,
    new: Sequence[NewReport],
    now: float | None = None,
) -> None:
    """Record any number of reports by a single statement.

    Args:
        connection: In AUTOCOMMIT, to a database with ``WITH`` for writes.
        study_id: The study's id.
        worker_id: The worker.
        grant: Its segment.
        new: The reports.
        now: The time, if a test sets it.
    """
    steps, values, trained = zip(*new, strict=True) if new else ((), (), ())
    given = {
        **_owner(study_id, worker_id, grant),
        "slots": grant.size,
        "steps": list(steps),
        "values": list(values),
        "seconds": list(trained),
    }
    _at_once(connection, _ADD_BY_DATABASE, _ADD_BY_TEST, given, grant, now)


def set_progress(
    connection: sa.Connection,
    study_id: int,
    worker_id: str,
    grant: Grant,
    said: Mapping[str, float | None],
) -> None:
    """Record the progress and speed of a segment by a single statement."""
    given = _owner(study_id, worker_id, grant)
    given.update({f"said_{name}": value for name, value in said.items()})
    _at_once(connection, _PROGRESS, _PROGRESS, given, grant, None)


def _owner(study_id: int, worker_id: str, grant: Grant) -> dict[str, object]:
    return {
        "my_study": study_id,
        "my_trial": grant.number,
        "me": worker_id,
        "my_fence": grant.fence,
    }


def _at_once(
    connection: sa.Connection,
    by_database: Any,
    by_test: Any,
    given: dict[str, object],
    grant: Grant,
    now: float | None,
) -> None:
    if now is None:
        mine = connection.execute(by_database, given).scalar_one()
    else:
        mine = connection.execute(by_test, {**given, "now": now}).scalar_one()
    if not mine:
        raise lease_lost(grant)


# Built once: to build them at each call would take longer than the server needs. No parameter
# has a column's name, or SQLAlchemy would set that column to it.

_SEGMENT: dict[str, sa.BindParameter[Any]] = {
    "study": sa.bindparam("my_study", type_=sa.Integer()),
    "trial": sa.bindparam("my_trial", type_=sa.Integer()),
    "fence": sa.bindparam("my_fence", type_=sa.BigInteger()),
}


def _mine() -> sa.CTE:
    """The trial's row, locked as its owner; no row if another worker owns it."""
    return (
        sa.select(trial.c.number)
        .where(
            trial.c.study_id == _SEGMENT["study"],
            trial.c.number == _SEGMENT["trial"],
            trial.c.owner == sa.bindparam("me", type_=sa.String()),
            trial.c.fence == _SEGMENT["fence"],
        )
        .with_for_update()
        .cte("mine")
    )


def _adding(now: sa.ColumnElement[float]) -> sa.Select[Any]:
    mine = _mine()
    lists: list[sa.BindParameter[Any]] = [
        sa.bindparam("steps", type_=ARRAY(sa.Integer)),
        sa.bindparam("values", type_=ARRAY(sa.Double)),
        sa.bindparam("seconds", type_=ARRAY(sa.Double)),
    ]
    new = (
        sa.func.unnest(*lists)
        .table_valued("step", "value", "trained", with_ordinality="place")
        .render_derived()
    )
    known = sa.exists().where(
        report.c.study_id == _SEGMENT["study"],
        report.c.number == mine.c.number,
        report.c.step == new.c.step,
    )
    rows = (
        sa.select(
            _SEGMENT["study"], mine.c.number, new.c.step, new.c.value, _SEGMENT["fence"],
            sa.bindparam("slots", type_=sa.Integer()), new.c.trained, now,
        )
        .select_from(mine.join(new, sa.true()))
        .where(~known)
        .order_by(new.c.place)
    )  # fmt: skip
    columns = ["study_id", "number", "step", "value", "fence", "slots", "trained", "at"]
    added = postgresql.insert(report).from_select(columns, rows).on_conflict_do_nothing()
    return sa.select(sa.func.count()).select_from(mine).add_cte(added.cte("added"))


def _telling() -> sa.Select[Any]:
    mine = _mine()
    seconds: dict[str, sa.BindParameter[Any]] = {
        name: sa.bindparam(f"said_{name}", type_=sa.Double()) for name in OF_SEGMENT
    }
    come = (
        sa.update(segment)
        .where(
            segment.c.study_id == _SEGMENT["study"],
            segment.c.number == mine.c.number,
            segment.c.fence == _SEGMENT["fence"],
        )
        .values(**seconds)
    )
    of_trial = {
        name: sa.func.coalesce(sa.bindparam(f"said_{name}", type_=column.type), column)
        for name, column in ((name, trial.c[name]) for name in OF_TRIAL)
    }
    changed = (
        sa.update(trial)
        .where(
            trial.c.study_id == _SEGMENT["study"],
            trial.c.number == mine.c.number,
            sa.or_(*(value.is_distinct_from(trial.c[name]) for name, value in of_trial.items())),
        )
        .values(**of_trial)
    )
    return (
        sa.select(sa.func.count())
        .select_from(mine)
        .add_cte(come.cte("come"), changed.cte("changed"))
    )


_ADD_BY_DATABASE = _adding(database_now())
_ADD_BY_TEST = _adding(sa.bindparam("now", type_=sa.Double()))
_PROGRESS = _telling()
