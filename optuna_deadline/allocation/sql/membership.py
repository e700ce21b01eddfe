"""Workers join a pool with their slots, and leave it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.records import About, Slot, Worker
from optuna_deadline.allocation.rules import admit, choose
from optuna_deadline.allocation.sql.database.schema import (
    leader,
    offer,
    pool,
    slot,
    study,
    tenant,
    worker,
)
from optuna_deadline.allocation.sql.database.transaction import (
    Transaction,
    database_now,
    wait_in_line,
)
from optuna_deadline.allocation.sql.roster import living, namesakes, offerers, rest, slots
from optuna_deadline.errors import DeadlineError

_REGISTRATION = 0x0D_EAD_115


def one_at_a_time(tx: Transaction) -> Transaction:
    """Let registrations queue: two that begin at once would name the same slots.

    SQLite's BEGIN IMMEDIATE does it by itself. On PostgreSQL the queue may be long, and what is
    written after it has the time at which its turn came.
    """
    if tx.connection.dialect.name != "postgresql":
        return tx
    wait_in_line(tx.connection)  # a cluster's workers may all start at once
    turn = sa.select(sa.func.pg_advisory_xact_lock(_REGISTRATION), database_now())
    _, now = tx.execute(turn).one()
    return replace(tx, now=now if tx.given is None else tx.given())


def ensure_pool(tx: Transaction, ttl: float, grace: float) -> tuple[float, float]:
    """Make the pool unless it is there; returns its lease's seconds and its grace.

    The first worker fixes both, since a reaper must know what every holder believes.
    """
    found = tx.execute(sa.select(pool.c.ttl, pool.c.grace).where(pool.c.name == tx.pool)).first()
    if found is not None:
        return float(found.ttl), float(found.grace)
    tx.execute(sa.insert(pool).values(name=tx.pool, epoch=0, ttl=ttl, grace=grace))
    tx.execute(sa.insert(leader).values(pool=tx.pool, holder=None, term=0, expires=0.0))
    return ttl, grace


def register(
    tx: Transaction,
    me: str,
    host: str,
    pid: int,
    devices: Sequence[str],
    cpus: int,
    ttl: float,
    weight: float | None = None,
    about: About | None = None,
) -> list[Slot]:
    """Join the pool: a worker row, the study's place in the pool, a slot row for each device.

    A slot belongs to its host. Workers of different studies may offer it, if they name the same
    pool; two of one study may not. A GPU is named by the caller; a CPU share takes the lowest
    number that is not refused. A slot that no other live worker offers is lent to the newcomer's
    study; the pool's leader lends it on. Again by the same worker, after a lost answer or a long
    silence, it keeps what no rival took; and it is drained still if it was.

    Raises:
        DeadlineError: A device is offered by a rival, the SQLite file is used from a second host,
            or :func:`~optuna_deadline.allocation.rules.admit` refuses.
    """
    about = about or About()
    newcomer = Worker(
        me, tx.pool, tx.study_id, host, pid, "live", tx.now + ttl,
        machine=about.machine, store=about.store, versions=about.versions, address=about.address,
        boot=about.boot,
    )  # fmt: skip
    known = {
        row.device: row.id
        for row in tx.rows(sa.select(slot.c.id, slot.c.device).where(slot.c.host == host))
    }
    offers = offerers(tx, known.values())
    alike = namesakes(tx, host, about.uuids)
    concerned = {name for row in alike for name in row.offered_by}.union(*offers.values())
    everywhere = {row.id: row for row in living(tx, _concerns(tx, host, concerned))}
    if tx.connection.dialect.name == "sqlite":
        other = next((row.host for row in everywhere.values() if row.host != host), None)
        if other is not None:
            raise DeadlineError(
                f"SQLite serves one host only, and workers of {other!r} use this file; "
                "use PostgreSQL to train on several hosts."
            )
    admit(newcomer, about.uuids, everywhere.values(), alike)
    rest(tx, [tx.study_id])  # where all of its workers died in silence
    names = choose(
        {name: [everywhere[w] for w in offers[i] if w in everywhere] for name, i in known.items()},
        {name for name, i in known.items() if me in offers[i]},
        devices,
        cpus,
        newcomer,
    )
    drained = tx.execute(
        sa.delete(worker).where(worker.c.id == me).returning(worker.c.drained)
    ).scalar()
    tx.execute(
        sa.insert(worker).values(
            id=me,
            pool=tx.pool,
            study_id=tx.study_id,
            host=host,
            pid=pid,
            state="live",
            registered=tx.now,
            lease=tx.now + ttl,
            drained=drained,
            machine=about.machine,
            store=about.store,
            versions=about.versions,
            address=about.address,
            boot=about.boot,
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
        elif not any(w in everywhere for w in offers[known[name]] if w != me):
            tx.execute(
                sa.update(slot)
                .where(slot.c.id == known[name])
                .values(pool=tx.pool, lent_to=tx.study_id)
            )
            lent.append(known[name])
        _offer(tx, me, known[name])
        if name in about.uuids:
            uuid = about.uuids[name]
            tx.execute(sa.update(slot).where(slot.c.id == known[name]).values(uuid=uuid))
    tx.event("register", worker=me, host=host, devices=names, lent=lent, **typed(about))
    return slots(tx, [known[name] for name in names])


def _concerns(tx: Transaction, host: str, concerned: Collection[str]) -> sa.ColumnElement[bool]:
    """Of all pools' workers those by which a newcomer is judged: SQLite's are on its host."""
    if tx.connection.dialect.name == "sqlite":
        return sa.true()
    return sa.or_(
        worker.c.host == host, worker.c.study_id == tx.study_id, worker.c.id.in_(concerned)
    )


def typed(about: About) -> dict[str, Any]:
    """What the audit keeps of a host's type, where it has one."""
    return {} if about.host_type is None else {"type": about.host_type}


def join_pool(tx: Transaction, weight: float | None) -> None:
    """Give the study its place in the pool; a weight that is named replaces the one before."""
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


def _offer(tx: Transaction, me: str, slot_id: int) -> None:
    """Offer a slot; what a dead rival offered is no longer its own, should it wake.

    Nor does a worker that died in a study that has ended since offer anything any more.
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
    tx.execute(sa.insert(offer).values(worker=me, slot_id=slot_id))


def leave(tx: Transaction, me: str) -> None:
    """Say goodbye: what it led and planned is handed on at once, and the last one pays no more.

    It offers nothing any more, but what it holds still: its study's planner has to reap that.
    """
    tx.execute(sa.update(worker).where(worker.c.id == me).values(state="left", lease=tx.now))
    held = sa.select(slot.c.id).where(slot.c.holder == me)
    tx.execute(sa.delete(offer).where(offer.c.worker == me, offer.c.slot_id.not_in(held)))
    hand_on(tx, [me])
    tx.event("leave", worker=me)
    rest(tx, [tx.study_id])


def hand_on(tx: Transaction, names: Collection[str]) -> None:
    """What workers lead and plan is up for election at once."""
    for table, holder in ((leader, leader.c.holder), (tenant, tenant.c.planner)):
        tx.execute(
            sa.update(table)
            .where(holder.in_(names))
            .values({holder: None, table.c.expires: tx.now})
        )
