"""Workers join a pool with their slots, and leave it."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from optuna_deadline.allocation.bounds import wait_in_line
from optuna_deadline.allocation.clock import TOLERANCE
from optuna_deadline.allocation.records import Slot, Worker
from optuna_deadline.allocation.schema import leader, pool, slot, worker
from optuna_deadline.allocation.transaction import Transaction
from optuna_deadline.errors import DeadlineError

_SLOT = (
    slot.c.id,
    slot.c.host,
    slot.c.device,
    slot.c.pool,
    slot.c.provider,
    slot.c.fence,
    slot.c.holder,
    slot.c.number,
    slot.c.lease,
)
_WORKER = (worker.c.id, worker.c.pool, worker.c.host, worker.c.pid, worker.c.state, worker.c.lease)


_REGISTRATION = 0x0D_EAD_115


def one_at_a_time(tx: Transaction) -> None:
    """Let registrations queue: two that begin at once would name the same slots.

    SQLite's BEGIN IMMEDIATE does it by itself.
    """
    if tx.connection.dialect.name == "postgresql":
        wait_in_line(tx.connection)  # a cluster's workers may all start at once
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_REGISTRATION)))


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
    tx: Transaction, me: str, host: str, pid: int, devices: Sequence[str], cpus: int, ttl: float
) -> list[Slot]:
    """Join the pool: a worker row, and a slot row for each device and CPU share.

    A GPU is named by the caller; a CPU share takes the lowest number that no live worker of the
    host offers. Again by the same worker, after a lost answer or a long silence, it keeps what
    nobody took.

    Raises:
        DeadlineError: A device is offered by another live worker, or the SQLite file is used from
            a second host.
    """
    everywhere = {row.id: row for row in _live(tx)}
    if tx.connection.dialect.name == "sqlite":
        other = next((row.host for row in everywhere.values() if row.host != host), None)
        if other is not None:
            raise DeadlineError(
                f"SQLite serves one host only, and workers of {other!r} use this file; "
                "use PostgreSQL to train on several hosts."
            )
    known = {row.device: row for row in tx.rows(sa.select(*_SLOT).where(slot.c.host == host))}
    mine = {name for name, row in known.items() if row.provider == me}
    taken = {name for name, row in known.items() if row.provider in everywhere} - mine
    for name in devices:
        if name in taken:
            row = known[name]
            raise taken_already(name, host, tx.pool, everywhere[row.provider])
    shares = (f"cpu:{index}" for index in range(len(known) + cpus))
    free = sorted((name for name in shares if name not in taken), key=lambda n: n not in mine)
    free = free[:cpus]
    tx.execute(sa.delete(worker).where(worker.c.id == me))
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
        )
    )
    for name in (*devices, *free):
        if name in known:
            tx.execute(
                sa.update(slot)
                .where(slot.c.id == known[name].id)
                .values(provider=me, pool=tx.pool)
            )
            continue
        tx.execute(
            sa.insert(slot).values(host=host, device=name, pool=tx.pool, provider=me, fence=0)
        )
    tx.event("register", worker=me, host=host, devices=[*devices, *free])
    return [row for row in slots(tx) if row.provider == me]


def taken_already(name: str, host: str, pool: str, other: Worker) -> DeadlineError:
    """The error for a device that another live worker offers."""
    where = "this pool" if other.pool == pool else f"pool {other.pool!r}"
    return DeadlineError(
        f"{name} on {host} is held by {where} (worker process {other.pid}); stop that worker or "
        "name another device."
    )


def live_workers(tx: Transaction) -> list[Worker]:
    """The pool's workers whose lease has not run out."""
    return _live(tx, worker.c.pool == tx.pool)


def _live(tx: Transaction, *where: sa.ColumnElement[bool]) -> list[Worker]:
    """A lease that ends too late is from before the clock was set back, and its worker dead."""
    found = (
        sa.select(*_WORKER)
        .join(pool, pool.c.name == worker.c.pool)
        .where(
            worker.c.state == "live",
            worker.c.lease > tx.now,
            worker.c.lease <= tx.now + pool.c.ttl + TOLERANCE,
            *where,
        )
    )
    return [Worker(*row) for row in tx.rows(found)]


def slots(tx: Transaction) -> list[Slot]:
    """The pool's slots, whoever offers them."""
    found = tx.rows(sa.select(*_SLOT).where(slot.c.pool == tx.pool).order_by(slot.c.id))
    return [Slot(*row) for row in found]


def leave(tx: Transaction, me: str) -> None:
    """Say goodbye: the leadership is handed on at once."""
    tx.execute(sa.update(worker).where(worker.c.id == me).values(state="left", lease=tx.now))
    tx.execute(
        sa.update(leader)
        .where(leader.c.pool == tx.pool, leader.c.holder == me)
        .values(holder=None, expires=tx.now)
    )
    tx.event("leave", worker=me)
