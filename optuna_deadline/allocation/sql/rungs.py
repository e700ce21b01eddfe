"""SQL on the rungs: what each trial reported first at or past each milestone."""

from __future__ import annotations

import functools
import math
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.sql.database.clock import database_now
from optuna_deadline.allocation.sql.database.schema import rung, rung_total, study
from optuna_deadline.allocation.sql.studies import insert_if_absent


def record(
    connection: sa.Connection, study_id: int, number: int, values: dict[int, float]
) -> None:
    """Record a trial's value at rungs; a value recorded before stays. One statement."""
    rows = [
        {
            "study_id": study_id,
            "rung": index,
            "number": number,
            "value": None if math.isnan(value) else float(value),
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
