"""Requests of users: to hold a trial, to pin its gang's size, to drain a host, to set a price.

Any client of the database writes a request, without a planner's term: planners write other columns
of the same rows. It takes effect once a planner has read it. From the commit on, no held trial and
no drained worker is granted a slot.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from optuna_deadline.allocation.database.notify import notify
from optuna_deadline.allocation.database.schema import study, tenant, trial, worker
from optuna_deadline.allocation.records import ALIVE
from optuna_deadline.allocation.rules import earlier_end, types_detail
from optuna_deadline.allocation.sql.membership import serialize_registrations
from optuna_deadline.allocation.sql.plans import lock_study
from optuna_deadline.allocation.sql.roster import live_workers
from optuna_deadline.allocation.sql.transaction import Transaction


def hold(tx: Transaction, number: int, held: bool) -> bool:
    """Hold a trial without slots, or release the hold; see the store."""
    since = tx.now if held else None
    before = trial.c.held.is_(None) if held else trial.c.held.is_not(None)
    if not _write_request(tx, number, before, held=since):
        return _is_living(tx, number)
    tx.event("hold", number=number, held=held)
    return True


def pin(tx: Transaction, number: int, slots: int | None) -> bool:
    """Pin the size of a trial's gang, or remove the pin; see the store."""
    if not _write_request(tx, number, trial.c.pinned.is_distinct_from(slots), pinned=slots):
        return _is_living(tx, number)
    tx.event("pin", number=number, slots=slots)
    return True


def set_price(
    tx: Transaction,
    host_type: str,
    per_hour: float,
    slots: int,
    funds_end: float,
    seen: tuple[int | None, float | None],
    types: Mapping[str, int] | None = None,
) -> bool:
    """Set the price of a slot from now on; see the store."""
    row = lock_study(tx)
    if row is None or seen != (row.pool_slots, row.funds_end):
        return False
    end = earlier_end(row.deadline, row.funds_end, funds_end)
    tx.execute(sa.update(study).where(study.c.study_id == tx.study_id).values(funds_end=end))
    tx.event("price", type=host_type, per_hour=per_hour, slots=slots)
    size = row.pool_slots or 0
    tx.event("pool", slots=size, before=size, until=end, **types_detail(types))
    notify(tx)
    return True


def drain(tx: Transaction, host: str, drained: bool) -> int:
    """Drain the pool's live workers on a host, or undo it; see the store."""
    tx = serialize_registrations(tx)  # a worker that registers again writes a new row of its own
    names = [row.id for row in live_workers(tx) if row.host == host]
    changed = tx.execute(
        sa.update(worker)
        .where(
            worker.c.id.in_(names),
            worker.c.drained.is_(None) if drained else worker.c.drained.is_not(None),
        )
        .values(drained=tx.now if drained else None)
        .returning(worker.c.id, worker.c.study_id)
    ).all()
    for row in sorted(changed):
        tx.event("drain", worker=row.id, study_id=row.study_id, host=host, drained=drained)
    if changed:
        notify(tx)
    return len(names)


def _write_request(
    tx: Transaction, number: int, before: sa.ColumnElement[bool], **columns: float | None
) -> bool:
    """Write a request to a live trial's row if it changes anything."""
    written = tx.execute(
        sa.update(trial).where(*_living(tx, number), before).values(**columns)
    ).rowcount
    if written:
        notify_planner(tx)
    return bool(written)


def notify_planner(tx: Transaction) -> None:
    """Notify the study's planner when this transaction commits."""
    planner = sa.select(tenant.c.planner).where(
        tenant.c.pool == tx.pool, tenant.c.study_id == tx.study_id
    )
    notify(tx, tx.execute(planner).scalars())


def _is_living(tx: Transaction, number: int) -> bool:
    return tx.execute(sa.select(trial.c.number).where(*_living(tx, number))).first() is not None


def _living(tx: Transaction, number: int) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        trial.c.study_id == tx.study_id,
        trial.c.number == number,
        trial.c.state.in_(ALIVE),
    )
