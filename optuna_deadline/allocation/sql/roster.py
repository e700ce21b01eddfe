"""The members of a pool and the slots that they offer.

A study without a live worker pays for nothing, and the end of its money is open. Its next planner
sizes the pool again with the rest of the money.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database.schema import (
    columns_of,
    offer,
    pool,
    slot,
    study,
    worker,
)
from optuna_deadline.allocation.records import Roster, Slot, Worker
from optuna_deadline.allocation.rules import CLOCK_TOLERANCE
from optuna_deadline.allocation.sql.transaction import Transaction

_SLOT = columns_of(slot, Slot)  # all but its offers
_WORKER = columns_of(worker, Worker)


def live_workers(tx: Transaction) -> list[Worker]:
    """The pool's live workers, whose lease has not expired."""
    return living(tx, worker.c.pool == tx.pool)


def living(tx: Transaction, *where: sa.ColumnElement[bool]) -> list[Worker]:
    """Live workers of any pool, chosen by conditions.

    A lease that ends too late is from before the clock was set back, and its worker is dead.
    """
    found = (
        sa.select(*_WORKER)
        .join(pool, pool.c.name == worker.c.pool)
        .where(
            worker.c.state == "live",
            worker.c.lease > tx.now,
            worker.c.lease <= tx.latest + pool.c.ttl + CLOCK_TOLERANCE,
            *where,
        )
    )
    return [Worker(*row) for row in tx.rows(found)]


def on_host(tx: Transaction, host: str) -> list[Worker]:
    """Workers of any pool on a host that are live or hold slots, dead ones included."""
    holds = sa.select(slot.c.id).where(slot.c.holder == worker.c.id)
    found = sa.select(*_WORKER).where(
        worker.c.host == host, sa.or_(worker.c.state == "live", holds.exists())
    )
    return [Worker(*row) for row in tx.rows(found.order_by(worker.c.registered, worker.c.id))]


def slots(tx: Transaction, ids: Collection[int] | None = None) -> list[Slot]:
    """The pool's slots, or some of them, with their offers; drained workers offer none."""
    offers = (
        sa.select(offer.c.slot_id, offer.c.worker)
        .join(worker, worker.c.id == offer.c.worker)
        .where(worker.c.pool == tx.pool, worker.c.state == "live")
        .order_by(worker.c.registered, worker.c.id)
    )
    query = sa.select(*_SLOT).where(slot.c.pool == tx.pool).order_by(slot.c.id)
    if ids is None:
        live = {row.id for row in live_workers(tx) if row.drained is None}
    else:
        offers, query = offers.where(offer.c.slot_id.in_(ids)), query.where(slot.c.id.in_(ids))
        named = {row.worker for row in tx.rows(offers)}
        live = {row.id for row in living(tx, worker.c.id.in_(named)) if row.drained is None}
    names: dict[int, list[str]] = {}
    for row in tx.rows(offers):
        if row.worker in live:
            names.setdefault(row.slot_id, []).append(row.worker)
    found = tx.rows(query)
    return [_slot(row, tuple(names.get(row.id, ()))) for row in found]


def read_roster(tx: Transaction) -> Roster:
    """The study's live workers and their slots; planners read this often."""
    free_or_alive = sa.or_(slot.c.lease.is_(None), slot.c.lease > tx.now)
    lent = sa.case((sa.and_(slot.c.lent_to == tx.study_id, free_or_alive), 1), else_=0)
    query = (
        sa.select(
            *_WORKER,
            (tx.latest + pool.c.ttl + CLOCK_TOLERANCE).label("last"),
            sa.func.count(slot.c.id).label("offers"),
            sa.func.sum(lent).label("lent"),
            sa.func.min(slot.c.lease).label("ends"),
        )
        .select_from(
            worker.join(pool, pool.c.name == worker.c.pool)
            .outerjoin(offer, offer.c.worker == worker.c.id)
            .outerjoin(slot, slot.c.id == offer.c.slot_id)
        )
        .where(worker.c.study_id == tx.study_id)
        .where(sa.or_(worker.c.state == "live", slot.c.id.is_not(None)))  # not all ever
        .group_by(worker.c.id, pool.c.ttl)
        .order_by(worker.c.registered, worker.c.id)
    )
    rows = tx.rows(query)
    mine = [row for row in rows if row.pool == tx.pool]
    live = [row for row in mine if row.state == "live" and tx.now < row.lease <= row.last]
    here = [row for row in live if row.drained is None]
    return Roster(
        [Worker(*row[: len(_WORKER)]) for row in live],
        {row.id: row.offers for row in here if row.offers},
        {row.id: row.lent for row in here if row.lent},
        min([row.ends for row in rows if row.ends is not None], default=None),
    )


def free_slots(tx: Transaction, worker_id: str) -> list[int]:
    """Slots that the worker may acquire now."""
    query = (
        sa.select(slot.c.id)
        .where(slot.c.id.in_(offered(worker_id)))
        .where(slot.c.lent_to == tx.study_id, slot.c.holder.is_(None))
    )
    return [row.id for row in tx.rows(query.order_by(slot.c.id))]


def offered(worker_id: str) -> sa.Select[tuple[int]]:
    """The ids of the slots that a worker offers; empty if it is drained."""
    return (
        sa.select(offer.c.slot_id)
        .join(worker, worker.c.id == offer.c.worker)
        .where(worker.c.id == worker_id, worker.c.drained.is_(None))
    )


def offerers(tx: Transaction, slot_ids: Iterable[int]) -> dict[int, list[str]]:
    """The workers that offer slots, dead ones included."""
    found: dict[int, list[str]] = {slot_id: [] for slot_id in slot_ids}
    for row in tx.rows(sa.select(offer).where(offer.c.slot_id.in_(found))):
        found[row.slot_id].append(row.worker)
    return found


def namesakes(tx: Transaction, host: str, uuids: Mapping[str, str]) -> list[Slot]:
    """Slots of any pool with the name or the UUID of one of these GPUs."""
    if not uuids:
        return []
    same_name = sa.and_(slot.c.host == host, slot.c.device.in_(uuids))
    same_gpu = slot.c.uuid.in_(list(uuids.values()))
    rows = tx.rows(sa.select(*_SLOT).where(sa.or_(same_name, same_gpu)))
    offers = offerers(tx, [row.id for row in rows])
    return [_slot(row, tuple(offers[row.id])) for row in rows]


def _slot(row: Any, offered_by: tuple[str, ...]) -> Slot:
    return Slot(*[*row[:-1], offered_by, row[-1]])


def stop_idle_payments(tx: Transaction, study_ids: Iterable[int]) -> None:
    """Stop the payments of those of the studies that pay for slots and have no live worker.

    The event has the time since when: no lease of their workers ended later.
    """
    for study_id in sorted(set(study_ids)):
        paying = sa.select(study.c.study_id).where(
            study.c.study_id == study_id,
            study.c.settled.is_(None),
            study.c.funds_end.is_not(None),
        )
        if tx.execute(paying).first() is None:
            continue  # the usual case: a worker that need not write the row does not lock it
        # Locked before the workers are read: the last two may leave at once.
        if tx.execute(paying.with_for_update(key_share=True)).first() is None:
            continue
        theirs = worker.c.study_id == study_id
        if living(tx, theirs):
            continue
        last = tx.execute(sa.select(sa.func.max(worker.c.lease)).where(theirs)).scalar()
        tx.execute(
            sa.update(study)
            .where(study.c.study_id == study_id)
            .values(pool_slots=0, funds_end=None)
        )
        since = tx.now if last is None else min(tx.now, last)
        tx.event("rest", study_id=study_id, since=since)
