"""Registers workers with their slots in a pool, and removes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import sqlalchemy as sa

from optuna_deadline.allocation.admission import check_admission, choose_devices
from optuna_deadline.allocation.database.limits import database_now, wait_in_line
from optuna_deadline.allocation.database.schema import (
    leader,
    offer,
    pool,
    slot,
    study,
    tenant,
    worker,
)
from optuna_deadline.allocation.records import MachineInfo, Slot, Worker
from optuna_deadline.allocation.rules import host_type_detail
from optuna_deadline.allocation.sql.roster import (
    living,
    namesakes,
    offerers,
    slots,
    stop_idle_payments,
)
from optuna_deadline.allocation.sql.transaction import Transaction
from optuna_deadline.errors import DeadlineError

_REGISTRATION = 0x0D_EAD_115


def serialize_registrations(tx: Transaction) -> Transaction:
    """Run registrations one after the other: two at once would take the same names.

    SQLite's BEGIN IMMEDIATE is enough. On PostgreSQL the wait may be long, and later writes have
    the time at which it ended.
    """
    if tx.connection.dialect.name != "postgresql":
        return tx
    wait_in_line(tx.connection)  # all workers of a cluster may start at once
    turn = sa.select(sa.func.pg_advisory_xact_lock(_REGISTRATION), database_now())
    _, now = tx.execute(turn).one()
    return replace(tx, now=now if tx.given is None else tx.given())


def ensure_pool(tx: Transaction, ttl: float, grace: float) -> tuple[float, float]:
    """Create the pool unless it exists; returns the seconds of its leases and its grace.

    The first worker sets both, because a reaper must know what every holder assumes.
    """
    found = tx.execute(sa.select(pool.c.ttl, pool.c.grace).where(pool.c.name == tx.pool)).first()
    if found is not None:
        return float(found.ttl), float(found.grace)
    tx.execute(sa.insert(pool).values(name=tx.pool, epoch=0, ttl=ttl, grace=grace))
    tx.execute(sa.insert(leader).values(pool=tx.pool, holder=None, term=0, expires=0.0))
    return ttl, grace


def register(
    tx: Transaction,
    worker_id: str,
    host: str,
    pid: int,
    devices: Sequence[str],
    cpus: int,
    ttl: float,
    weight: float | None = None,
    machine_info: MachineInfo | None = None,
) -> list[Slot]:
    """Join the pool: a worker row, the study's place in the pool, a slot row per device.

    A slot belongs to its host. Workers of different studies of one pool may offer it; two of one
    study may not. The caller names GPUs; a CPU share takes the lowest free number. A slot that no
    other live worker offers is lent to the newcomer's study; the pool's leader may lend it on. A
    repeated call by the same worker, after a lost answer or a long silence, keeps the slots that
    no rival has taken, and keeps the worker drained.

    Raises:
        DeadlineError: A rival offers a device, a second host uses the SQLite file, or
            :func:`~optuna_deadline.allocation.admission.check_admission` refuses.
    """
    machine_info = machine_info or MachineInfo()
    newcomer = Worker(
        worker_id,
        tx.pool,
        tx.study_id,
        host,
        pid,
        "live",
        tx.now + ttl,
        machine=machine_info.machine,
        store=machine_info.store,
        versions=machine_info.versions,
        address=machine_info.address,
        boot=machine_info.boot,
    )
    known = {
        row.device: row.id
        for row in tx.rows(sa.select(slot.c.id, slot.c.device).where(slot.c.host == host))
    }
    offers = offerers(tx, known.values())
    alike = namesakes(tx, host, machine_info.uuids)
    concerned = {name for row in alike for name in row.offered_by}.union(*offers.values())
    everywhere = {row.id: row for row in living(tx, _relevant_to_newcomer(tx, host, concerned))}
    if tx.connection.dialect.name == "sqlite":
        other = next((row.host for row in everywhere.values() if row.host != host), None)
        if other is not None:
            raise DeadlineError(
                f"SQLite serves one host only, and workers of {other!r} use this file; "
                "use PostgreSQL to train on several hosts."
            )
    check_admission(newcomer, machine_info.uuids, everywhere.values(), alike)
    stop_idle_payments(tx, [tx.study_id])  # if all of its workers died
    names = choose_devices(
        {name: [everywhere[w] for w in offers[i] if w in everywhere] for name, i in known.items()},
        {name for name, i in known.items() if worker_id in offers[i]},
        devices,
        cpus,
        newcomer,
    )
    drained = tx.execute(
        sa.delete(worker).where(worker.c.id == worker_id).returning(worker.c.drained)
    ).scalar()
    tx.execute(
        sa.insert(worker).values(
            id=worker_id,
            pool=tx.pool,
            study_id=tx.study_id,
            host=host,
            pid=pid,
            state="live",
            registered=tx.now,
            lease=tx.now + ttl,
            drained=drained,
            machine=machine_info.machine,
            store=machine_info.store,
            versions=machine_info.versions,
            address=machine_info.address,
            boot=machine_info.boot,
        )
    )
    join_pool(tx, weight)
    lent = []
    for name in names:
        if name not in known:
            known[name] = tx.execute(
                sa.insert(slot)
                .values(host=host, device=name, pool=tx.pool, fence=0, lent_to=tx.study_id)
                .returning(slot.c.id)
            ).scalar_one()
            lent.append(known[name])
        elif not any(w in everywhere for w in offers[known[name]] if w != worker_id):
            tx.execute(
                sa.update(slot)
                .where(slot.c.id == known[name])
                .values(pool=tx.pool, lent_to=tx.study_id)
            )
            lent.append(known[name])
        _offer(tx, worker_id, known[name])
        if name in machine_info.uuids:
            uuid = machine_info.uuids[name]
            tx.execute(sa.update(slot).where(slot.c.id == known[name]).values(uuid=uuid))
    tx.event(
        "register",
        worker=worker_id,
        host=host,
        devices=names,
        lent=lent,
        **host_type_detail(machine_info),
    )
    return slots(tx, [known[name] for name in names])


def _relevant_to_newcomer(
    tx: Transaction, host: str, concerned: Collection[str]
) -> sa.ColumnElement[bool]:
    """The workers by which a newcomer is judged: SQLite's are on its host."""
    if tx.connection.dialect.name == "sqlite":
        return sa.true()
    return sa.or_(
        worker.c.host == host, worker.c.study_id == tx.study_id, worker.c.id.in_(concerned)
    )


def join_pool(tx: Transaction, weight: float | None) -> None:
    """Add the study to the pool; a given weight replaces the one before."""
    place = (tenant.c.pool == tx.pool, tenant.c.study_id == tx.study_id)
    if tx.execute(sa.select(tenant.c.term).where(*place)).first() is None:
        tx.execute(
            sa.insert(tenant).values(
                pool=tx.pool,
                study_id=tx.study_id,
                weight=1.0 if weight is None else weight,
                joined=tx.now,
                term=0,
                expires=0.0,
                live=0,
                done=0.0,
                served=0.0,
                entitled=0.0,
                counted=tx.now,
            )
        )
    elif weight is not None:
        tx.execute(sa.update(tenant).where(*place).values(weight=weight))


def _offer(tx: Transaction, worker_id: str, slot_id: int) -> None:
    """Offer a slot; a dead rival loses its offer, even if it wakes.

    A worker that died in a study that has ended also offers nothing any more.
    """
    over = sa.select(study.c.study_id).where(study.c.settled.is_not(None))
    rival = sa.select(worker.c.id).where(
        worker.c.id == offer.c.worker,
        sa.or_(
            worker.c.pool != tx.pool,
            worker.c.study_id == tx.study_id,
            sa.and_(worker.c.state != "live", worker.c.study_id.in_(over)),
        ),
    )
    tx.execute(sa.delete(offer).where(offer.c.slot_id == slot_id, rival.exists()))
    tx.execute(sa.insert(offer).values(worker=worker_id, slot_id=slot_id))


def leave(tx: Transaction, worker_id: str) -> None:
    """Leave: elected roles end at once, and the study of the last worker stops paying.

    It offers nothing any more except held slots, which its study's planner must reap.
    """
    tx.execute(
        sa.update(worker).where(worker.c.id == worker_id).values(state="left", lease=tx.now)
    )
    held = sa.select(slot.c.id).where(slot.c.holder == worker_id)
    tx.execute(sa.delete(offer).where(offer.c.worker == worker_id, offer.c.slot_id.not_in(held)))
    release_leadership(tx, [worker_id])
    tx.event("leave", worker=worker_id)
    stop_idle_payments(tx, [tx.study_id])


def release_leadership(tx: Transaction, names: Collection[str]) -> None:
    """End the elected roles of workers."""
    for table, holder in ((leader, leader.c.holder), (tenant, tenant.c.planner)):
        tx.execute(
            sa.update(table)
            .where(holder.in_(names))
            .values({holder: None, table.c.expires: tx.now})
        )
