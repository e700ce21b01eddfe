"""Reaping: what dead workers held is freed.

By the clock, which errs on the late side and is the only transition that compares clocks; or at
once, where a process on the same host has seen that they have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.sql import gangs
from optuna_deadline.allocation.sql.database.clock import TOLERANCE
from optuna_deadline.allocation.sql.database.notify import notify
from optuna_deadline.allocation.sql.database.schema import offer, pool, slot, trial, worker
from optuna_deadline.allocation.sql.database.transaction import Transaction
from optuna_deadline.allocation.sql.membership import hand_on
from optuna_deadline.allocation.sql.release import end_segment
from optuna_deadline.allocation.sql.resting import rest


def reap(tx: Transaction) -> int:
    """Free what dead workers held: the only transition that compares clocks.

    In the pool, and of this study in those where it was before. Seconds are the pool's, whatever
    this process was started with. A lease that ends later than any that could be taken now is from
    before the clock was set back. ``SKIP LOCKED``: a client frozen inside its transaction must not
    block the reaper.

    Returns:
        The number of slots freed.
    """
    expired = _free_expired(tx)
    gangs.forget_reaped(tx, expired)
    studies = sa.select(worker.c.study_id).where(worker.c.pool == tx.pool)
    _let_go_of_orphans(tx, trial.c.study_id.in_(studies))
    _bury_the_silent(tx)
    if expired:
        _forget_offers(tx, [row.id for row in expired])
        notify(tx)
    return len(expired)


def bury(tx: Transaction, names: Collection[str]) -> int:
    """Free at once what workers of any pool hold that are known to have ended; see the store.

    Returns:
        The number of slots freed.
    """
    if not names:
        return 0
    query = sa.select(slot).where(slot.c.holder.in_(names)).order_by(slot.c.id)
    held = tx.rows(query.with_for_update())
    _free(tx, held)
    gangs.forget_reaped(tx, held)
    _forget_offers(tx, [row.id for row in held])
    _let_go_of_orphans(tx, trial.c.owner.in_(names))
    gone = tx.execute(
        sa.update(worker)
        .where(worker.c.id.in_(names), worker.c.state == "live")
        .values(state="lost")
        .returning(worker.c.study_id)
    )
    rest(tx, gone.scalars().all())
    hand_on(tx, names)
    notify(tx)
    return len(held)


def _free_expired(tx: Transaction) -> Sequence[Any]:
    too_late = slot.c.lease > tx.latest + pool.c.ttl + TOLERANCE
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
    for row in rows:
        tx.execute(
            sa.update(slot)
            .where(slot.c.id == row.id, slot.c.fence == row.fence)
            .values(holder=None, lease=None, number=None, study_id=None, fence=slot.c.fence + 1)
        )
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
    """What a worker held as it left it offers no more, once that was reaped."""
    gone = sa.select(worker.c.id).where(worker.c.state == "left")
    tx.execute(sa.delete(offer).where(offer.c.slot_id.in_(slot_ids), offer.c.worker.in_(gone)))


def _let_go_of_orphans(tx: Transaction, among: sa.ColumnElement[bool]) -> None:
    """Trials whose owner holds no slot for them: the next one takes them from a checkpoint.

    Among those of every study of the pool: no worker may be left that reaps for another one.
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
    for row in orphans:
        tx.execute(
            sa.update(trial)
            .where(
                trial.c.study_id == row.study_id,
                trial.c.number == row.number,
                trial.c.fence == row.fence,
            )
            .values(owner=None, state="paused")
        )
        end_segment(tx, row.study_id, row.number, row.fence, "lost", None)
        tx.event(
            "lost", number=row.number, fence=row.fence, worker=row.owner, study_id=row.study_id,
            pool=row.pool,
        )  # fmt: skip


def _bury_the_silent(tx: Transaction) -> None:
    """Workers that have not renewed for so long are lost.

    One that renews just now is passed over: it locks its row first and its slots next, which we
    may hold.
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
        rest(tx, [row.study_id for row in found])
