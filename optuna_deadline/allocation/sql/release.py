"""Releases slots by holder and fence, and reaps the slots of dead workers.

A release never compares clocks: a worker without its lease changes nothing. Reaping compares
clocks, on the late side, and is the only transition that does. It is immediate if a process on the
same host has verified that the workers have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database.notify import notify
from optuna_deadline.allocation.database.schema import (
    offer,
    pool,
    segment,
    slot,
    tenant,
    trial,
    worker,
)
from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.rules import CLOCK_TOLERANCE
from optuna_deadline.allocation.sql import gangs
from optuna_deadline.allocation.sql.membership import release_leadership
from optuna_deadline.allocation.sql.roster import stop_idle_payments
from optuna_deadline.allocation.sql.transaction import Transaction


def release(
    tx: Transaction,
    worker_id: str,
    grant: Grant,
    outcome: str,
    *,
    ended: str,
    value: float | None = None,
    stop: float | None = None,
    failures: int = 0,
    stays: bool = False,
) -> bool:
    """Release the slots after the last rank has exited, and record how the segment ended.

    Args:
        tx: The transaction.
        worker_id: The worker.
        grant: The result of :func:`~optuna_deadline.allocation.sql.acquire.acquire`.
        outcome: The trial's next state: paused, retired, failed or complete.
        ended: Why the segment ended: pause, resize, deadline, shutdown, died, error, ...
        value: The value for Optuna of a complete trial.
        stop: Seconds from the directive to the last rank's exit.
        failures: How many times the trial has died so far.
        stays: Whether its process is parked with the worker, which should resume it.

    Returns:
        False if the lease was lost; then nothing changes.
    """
    # The plan may want it elsewhere by now: then the process is of no use.
    waits = sa.case((trial.c.desired_mode == "pause", worker_id), else_=trial.c.desired_worker)
    owned = tx.execute(
        sa.update(trial)
        .where(
            trial.c.study_id == tx.study_id,
            trial.c.number == grant.number,
            trial.c.owner == worker_id,
            trial.c.fence == grant.fence,
        )
        .values(owner=None, state=outcome, value=value, failures=failures)
        .values({"desired_worker": waits} if stays else {})
    ).rowcount
    if not owned:
        return False
    freed = gangs.free(tx, worker_id, grant.number, grant.slots)
    end_segment(tx, tx.study_id, grant.number, grant.fence, ended, stop)
    tx.event(outcome, number=grant.number, fence=grant.fence, worker=worker_id, reason=ended)
    called = [part.worker for part in grant.others]
    notify(tx, [*_workers_to_wake(tx, grant.number, freed), *called])
    return True


def release_part(tx: Transaction, worker_id: str, number: int, fence: int) -> bool:
    """Free a part's slots after its last rank has exited; see the store."""
    freed = gangs.release_part(tx, worker_id, number, fence)
    if freed is not None:
        notify(tx, _workers_to_wake(tx, number, freed))
    return freed is not None


def _workers_to_wake(tx: Transaction, number: int, freed: list[int]) -> list[str | None]:
    """The planner, the trial's next worker, and workers of other studies that get the slots."""
    planner = sa.select(tenant.c.planner).where(
        tenant.c.pool == tx.pool, tenant.c.study_id == tx.study_id
    )
    heir = sa.select(trial.c.desired_worker).where(
        trial.c.study_id == tx.study_id, trial.c.number == number
    )
    others = (
        sa.select(worker.c.id)
        .join(offer, offer.c.worker == worker.c.id)
        .join(slot, slot.c.id == offer.c.slot_id)
        .where(
            slot.c.id.in_(freed),
            slot.c.lent_to != tx.study_id,
            worker.c.study_id == slot.c.lent_to,
            worker.c.state == "live",
        )
    )
    return list(tx.execute(sa.union_all(planner, heir, others)).scalars())


def cancel_grant(tx: Transaction, worker_id: str, number: int, fence: int) -> bool:
    """Release a segment whose grant never reached its worker; see the store."""
    owned = tx.execute(
        sa.select(trial)
        .where(
            trial.c.study_id == tx.study_id,
            trial.c.number == number,
            trial.c.owner == worker_id,
            trial.c.fence == fence,
        )
        .with_for_update()
    ).first()
    if owned is None:
        return False
    held = tx.rows(
        sa.select(slot.c.id, slot.c.fence, slot.c.device)
        .where(slot.c.holder == worker_id, slot.c.study_id == tx.study_id, slot.c.number == number)
        .order_by(slot.c.id)
    )
    grant = Grant(
        number=number,
        trial_id=owned.trial_id,
        fence=fence,
        slots=tuple((row.id, row.fence) for row in held),
        devices=tuple(row.device for row in held),
    )
    gangs.reclaim_parts(tx, grant)
    return release(
        tx,
        worker_id,
        grant,
        "paused",
        ended="disowned",
        value=owned.value,
        failures=owned.failures,
    )


def end_segment(
    tx: Transaction, study_id: int, number: int, fence: int, outcome: str, stop: float | None
) -> None:
    """Close the segment's row."""
    closed = tx.execute(
        sa.update(segment)
        .where(
            segment.c.study_id == study_id,
            segment.c.number == number,
            segment.c.fence == fence,
            segment.c.ended.is_(None),
        )
        .values(ended=tx.now, outcome=outcome, stop=stop)
        .returning(segment.c.workers)
    ).first()
    if closed is not None and closed.workers is not None:
        gangs.close_rendezvous(tx, study_id, number, fence)


def reap(tx: Transaction) -> int:
    """Free the slots of dead workers: the only transition that compares clocks.

    This covers the pool, and this study in the pools where it was before. The seconds are the
    pool's, not this process's. A lease that ends later than any new one could is from before the
    clock was set back. ``SKIP LOCKED``: a client that is frozen inside its transaction must not
    block the reaper.

    Returns:
        The number of freed slots.
    """
    expired = _free_expired_slots(tx)
    gangs.delete_reaped_parts(tx, expired)
    studies = sa.select(worker.c.study_id).where(worker.c.pool == tx.pool)
    _release_orphans(tx, trial.c.study_id.in_(studies))
    _mark_silent_lost(tx)
    if expired:
        _forget_offers(tx, [row.id for row in expired])
        notify(tx)
    return len(expired)


def reap_ended(tx: Transaction, names: Collection[str]) -> int:
    """Free at once the slots of workers of any pool that are known to have ended; see the store.

    Returns:
        The number of freed slots.
    """
    if not names:
        return 0
    query = sa.select(slot).where(slot.c.holder.in_(names)).order_by(slot.c.id)
    held = tx.rows(query.with_for_update())
    _free(tx, held)
    gangs.delete_reaped_parts(tx, held)
    _forget_offers(tx, [row.id for row in held])
    _release_orphans(tx, trial.c.owner.in_(names))
    gone = tx.execute(
        sa.update(worker)
        .where(worker.c.id.in_(names), worker.c.state == "live")
        .values(state="lost")
        .returning(worker.c.study_id)
    )
    stop_idle_payments(tx, gone.scalars().all())
    release_leadership(tx, names)
    notify(tx)
    return len(held)


def _free_expired_slots(tx: Transaction) -> Sequence[Any]:
    too_late = slot.c.lease > tx.latest + pool.c.ttl + CLOCK_TOLERANCE
    expired = tx.rows(
        sa.select(slot)
        .join(pool, pool.c.name == slot.c.pool)
        .where(sa.or_(slot.c.pool == tx.pool, slot.c.study_id == tx.study_id))
        .where(slot.c.holder.is_not(None))
        .where(sa.or_(slot.c.lease + pool.c.grace < tx.now, too_late))
        .order_by(slot.c.id)
        .with_for_update(skip_locked=True, of=slot)
    )
    _free(tx, expired)
    return expired


def _free(tx: Transaction, rows: Sequence[Any]) -> None:
    if rows:
        tx.execute(
            sa.update(slot)
            .where(sa.tuple_(slot.c.id, slot.c.fence).in_([(row.id, row.fence) for row in rows]))
            .values(holder=None, lease=None, number=None, study_id=None, fence=slot.c.fence + 1)
        )
    for row in rows:
        tx.event(
            "reap",
            number=row.number,
            slot=row.id,
            fence=row.fence + 1,
            worker=row.holder,
            study_id=row.study_id,
            pool=row.pool,
        )


def _forget_offers(tx: Transaction, slot_ids: Sequence[int]) -> None:
    """Delete the offers of workers that have left, once their slots are reaped."""
    gone = sa.select(worker.c.id).where(worker.c.state == "left")
    tx.execute(sa.delete(offer).where(offer.c.slot_id.in_(slot_ids), offer.c.worker.in_(gone)))


def _release_orphans(tx: Transaction, among: sa.ColumnElement[bool]) -> None:
    """Pause trials whose owner holds no slot for them; they resume from a checkpoint.

    In every study of the pool, because no worker of the other study may be left to reap.
    """
    held = sa.select(slot.c.id).where(
        slot.c.holder == trial.c.owner,
        slot.c.study_id == trial.c.study_id,
        slot.c.number == trial.c.number,
    )
    orphans = tx.rows(
        sa.select(trial.c.number, trial.c.fence, trial.c.owner, trial.c.study_id, worker.c.pool)
        .join(worker, worker.c.id == trial.c.owner, isouter=True)
        .where(
            among,
            trial.c.state == "running",
            trial.c.owner.is_not(None),
            ~held.exists(),
        )
        .with_for_update(skip_locked=True, of=trial)
    )
    if orphans:
        known = [(row.study_id, row.number, row.fence) for row in orphans]
        tx.execute(
            sa.update(trial)
            .where(sa.tuple_(trial.c.study_id, trial.c.number, trial.c.fence).in_(known))
            .values(owner=None, state="paused")
        )
    for row in orphans:
        end_segment(tx, row.study_id, row.number, row.fence, "lost", None)
        tx.event(
            "lost", number=row.number, fence=row.fence, worker=row.owner, study_id=row.study_id,
            pool=row.pool,
        )  # fmt: skip


def _mark_silent_lost(tx: Transaction) -> None:
    """Mark workers lost that have not renewed for so long.

    A worker that renews just now is skipped: it locks its row first and its slots next, which this
    transaction may hold.
    """
    silent = (
        sa.select(worker.c.id, worker.c.study_id)
        .join(pool, pool.c.name == worker.c.pool)
        .where(sa.or_(worker.c.pool == tx.pool, worker.c.study_id == tx.study_id))
        .where(worker.c.state == "live", worker.c.lease + pool.c.grace < tx.now)
        .with_for_update(skip_locked=True, of=worker)
    )
    found = tx.rows(silent)
    if found:
        names = [row.id for row in found]
        tx.execute(sa.update(worker).where(worker.c.id.in_(names)).values(state="lost"))
        stop_idle_payments(tx, [row.study_id for row in found])
