"""Reads of planners, workers and views; none of them locks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database.limits import database_now
from optuna_deadline.allocation.database.schema import (
    checkpoint,
    columns_of,
    event,
    part,
    pool,
    report,
    segment,
    study,
    tenant,
    trial,
    worker,
)
from optuna_deadline.allocation.records import (
    ALIVE,
    CheckpointOrigin,
    Event,
    Orders,
    PlannedTrial,
    ReportRow,
    SegmentRow,
)
from optuna_deadline.allocation.sql.transaction import Transaction
from optuna_deadline.allocation.tail import PAGE
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import parse_location
from optuna_deadline.errors import StudyGone

_TRIAL = columns_of(
    trial,
    PlannedTrial,
    mode="desired_mode",
    worker="desired_worker",
    slots="desired_slots",
    since="desired_since",
    end_reported="told",
    others="desired_others",
)
_BY_ID = attrgetter("id")
_IN_ORDER = attrgetter("granted", "number", "fence")
_SEGMENT = (*columns_of(segment, SegmentRow)[:-1], sa.func.coalesce(segment.c.workers, 1))
_REPORT = columns_of(report, ReportRow)
_CHECKPOINT = columns_of(checkpoint, Checkpoint)
_EVENT = columns_of(event, Event)


def _orders() -> sa.Select[Any]:
    me = sa.bindparam("me", type_=sa.String())
    mine = sa.and_(
        trial.c.study_id == study.c.study_id,
        trial.c.state.in_(ALIVE),
        sa.or_(trial.c.owner == me, trial.c.desired_worker == me),
    )
    in_pool = pool.c.name == sa.bindparam("pool")
    called = sa.select(part.c.number).where(part.c.worker == me).exists()
    drained = sa.select(worker.c.drained).where(worker.c.id == me).scalar_subquery()
    return (
        sa.select(
            database_now(),
            study.c.deadline,
            study.c.settled,
            study.c.pool_slots,
            study.c.funds_end,
            study.c.gate_closed,
            pool.c.epoch,
            drained,
            called,
            *_TRIAL,
        )
        .select_from(study.outerjoin(pool, in_pool).outerjoin(trial, mine))
        .where(study.c.study_id == sa.bindparam("study"))
    )


_ORDERS = _orders()  # built once: every worker reads each second


def orders(
    connection: sa.Connection,
    pool_name: str,
    study_id: int,
    worker_id: str,
    now: float | None = None,
) -> Orders:
    """The orders of one worker in one statement, because every worker reads each second.

    Args:
        connection: In AUTOCOMMIT.
        pool_name: The pool.
        study_id: The study.
        worker_id: The worker.
        now: The time, if a test sets it.

    Raises:
        StudyGone: The study was deleted.
    """
    given = {"pool": pool_name, "study": study_id, "me": worker_id}
    rows = connection.execute(_ORDERS, given).all()
    if not rows:
        raise StudyGone("The study was deleted while the worker ran.")
    read, deadline, settled, slots, funds_end, gate_closed, epoch, drained, called = rows[0][:9]
    return Orders(
        now=read if now is None else now,
        deadline=deadline,
        settled=settled is not None,
        epoch=int(epoch or 0),
        trials=tuple(PlannedTrial(*row[9:]) for row in rows if row.number is not None),
        pool_slots=slots,
        funds_end=funds_end,
        drained=drained is not None,
        in_gangs=bool(called),
        gate_open=gate_closed is None,
    )


def pools(connection: sa.Connection) -> list[str]:
    """The names of all pools."""
    return list(connection.execute(sa.select(pool.c.name).order_by(pool.c.name)).scalars())


def pools_of(connection: sa.Connection, study_id: int) -> list[str]:
    """The pools that a study has joined; first the one that a worker joined last."""
    came = sa.select(sa.func.max(worker.c.registered)).where(
        worker.c.pool == tenant.c.pool, worker.c.study_id == tenant.c.study_id
    )
    query = sa.select(tenant.c.pool).where(tenant.c.study_id == study_id)
    last = sa.func.coalesce(came.scalar_subquery(), tenant.c.joined)
    return list(connection.execute(query.order_by(last.desc())).scalars())


def trials(tx: Transaction) -> list[PlannedTrial]:
    """Every trial in the table."""
    query = sa.select(*_TRIAL).where(trial.c.study_id == tx.study_id).order_by(trial.c.number)
    return [PlannedTrial(*row) for row in tx.rows(query)]


def unreported_trials(tx: Transaction) -> list[PlannedTrial]:
    """Trials that live, or whose end Optuna does not know yet."""
    query = (
        sa.select(*_TRIAL)
        .where(
            trial.c.study_id == tx.study_id,
            sa.or_(trial.c.told.is_(False), trial.c.state.in_(ALIVE)),
        )
        .order_by(trial.c.number)
    )
    return [PlannedTrial(*row) for row in tx.rows(query)]


def segments(tx: Transaction, since: float = 0.0) -> list[SegmentRow]:
    """Segments that run, or ended at or after ``since``."""
    mine = sa.select(*_SEGMENT).where(segment.c.study_id == tx.study_id)
    # Two queries: for OR, SQLite reads every segment of the study.
    found = sa.union_all(
        mine.where(segment.c.ended.is_(None)), mine.where(segment.c.ended >= since)
    )
    return sorted([SegmentRow(*row) for row in tx.rows(found)], key=_IN_ORDER)


def reports(tx: Transaction, after: int = 0, number: int | None = None) -> list[ReportRow]:
    """Reports with a row id above ``after``, of one trial or of all; NULL becomes NaN."""
    query = sa.select(*_REPORT).where(report.c.study_id == tx.study_id)
    if number is None:
        rows = tx.rows(query.where(report.c.id > after).order_by(report.c.id))
    else:  # ordered by id, SQLite would read the reports of all trials
        found = tx.rows(query.where(report.c.number == number))
        rows = sorted([row for row in found if row.id > after], key=_BY_ID)
    read = [ReportRow(*row) for row in rows]
    return [one._replace(value=math.nan) if one.value is None else one for one in read]


def checkpoints(tx: Transaction, number: int | None = None) -> list[Checkpoint]:
    """Committed checkpoints of one trial or of all, newest first."""
    query = sa.select(*_CHECKPOINT).where(checkpoint.c.study_id == tx.study_id)
    if number is not None:
        query = query.where(checkpoint.c.number == number)
    return [
        Checkpoint(*row)._replace(path=parse_location(row.path))
        for row in tx.rows(query.order_by(checkpoint.c.id.desc()))
    ]


def checkpoint_origins(
    tx: Transaction, after: int = 0, number: int | None = None
) -> list[CheckpointOrigin]:
    """Where checkpoints were written, by id."""
    written = sa.and_(
        segment.c.study_id == checkpoint.c.study_id,
        segment.c.number == checkpoint.c.number,
        segment.c.fence == checkpoint.c.fence,
    )
    query = (
        sa.select(
            checkpoint.c.id,
            checkpoint.c.number,
            checkpoint.c.path,
            worker.c.host,
            worker.c.store,
            worker.c.state,
            checkpoint.c.at,
        )
        .select_from(
            checkpoint.outerjoin(segment, written).outerjoin(
                worker, worker.c.id == segment.c.worker
            )
        )
        .where(checkpoint.c.study_id == tx.study_id, checkpoint.c.id > after)
        .order_by(checkpoint.c.id)
    )
    if number is not None:
        query = query.where(checkpoint.c.number == number)
    return [
        CheckpointOrigin(row.id, row.number, parse_location(row.path), *row[3:])
        for row in tx.rows(query)
    ]


def trained_before(tx: Transaction, number: int, fence: int) -> float:
    """Seconds of training in the trial's earlier segments."""
    total = tx.execute(
        sa.select(sa.func.sum(segment.c.trained)).where(
            segment.c.study_id == tx.study_id,
            segment.c.number == number,
            segment.c.fence < fence,
        )
    ).scalar()
    return float(total or 0.0)


def events(
    tx: Transaction, after: int = 0, kinds: Sequence[str] | None = None, limit: int = PAGE
) -> list[Event]:
    """The study's events in all pools from a row id on, of some kinds or of all."""
    return _events(tx, event.c.study_id == tx.study_id, after, kinds, limit)


def pool_events(
    tx: Transaction, after: int = 0, kinds: Sequence[str] | None = None, limit: int = PAGE
) -> list[Event]:
    """The events of all studies of the pool from a row id on, of some kinds or of all."""
    return _events(tx, event.c.pool == tx.pool, after, kinds, limit)


def _events(
    tx: Transaction,
    where: sa.ColumnElement[bool],
    after: int,
    kinds: Sequence[str] | None,
    limit: int,
) -> list[Event]:
    query = sa.select(*_EVENT).where(where, event.c.id > after)
    if kinds is not None:
        query = query.where(event.c.kind.in_(kinds))
    return [Event(*row) for row in tx.rows(query.order_by(event.c.id).limit(limit))]


def event_before(tx: Transaction, count: int) -> int:
    """The row id before the pool's newest events, so many of them; 0 if it has fewer."""
    ids = sa.select(event.c.id).where(event.c.pool == tx.pool).order_by(event.c.id.desc())
    return int(tx.execute(ids.offset(count).limit(1)).scalar() or 0)
