"""Acquire, release, reap: the three ways in which a slot changes its holder.

Each is guarded by holder and fence, never by a clock; only the reaper compares clocks, and errs on
the late side. Rows are locked trial first, then slots by their key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from optuna_deadline.allocation import gangs
from optuna_deadline.allocation.clock import TOLERANCE
from optuna_deadline.allocation.membership import offered
from optuna_deadline.allocation.notices import notify
from optuna_deadline.allocation.plans import beside
from optuna_deadline.allocation.records import Grant, Part
from optuna_deadline.allocation.schema import (
    offer,
    pool,
    segment,
    slot,
    study,
    tenant,
    trial,
    worker,
)
from optuna_deadline.allocation.transaction import Transaction


def acquire(
    tx: Transaction,
    me: str,
    number: int,
    slot_ids: Sequence[int],
    ttl: float,
    others: Mapping[str, Sequence[int]] | None = None,
) -> Grant | None:
    """Take a gang's slots for a trial that the plan wants here: all of them or none.

    Args:
        tx: The transaction.
        me: The worker, which owns the trial from now on.
        number: The trial's.
        slot_ids: Slots that it offers.
        ttl: Seconds that their leases live.
        others: By further workers that the plan names, slots that these offer.

    Returns:
        The grant, or None where the plan has changed, somebody holds a slot or the trial, a slot
        is lent to another study, the study's deadline or the end of its money has passed, its
        trials would hold more slots than it pays for, or a person has the trial held or the worker
        drained.
    """
    wanted = tx.execute(
        sa.select(trial)
        .where(trial.c.study_id == tx.study_id, trial.c.number == number)
        .with_for_update()
    ).first()
    if wanted is None or wanted.owner is not None or wanted.state not in ("ready", "paused"):
        return None
    if (wanted.desired_mode, wanted.desired_worker) != ("run", me):
        return None
    others = others or {}
    desired = json.loads(wanted.desired_others or "[]")
    if not gangs.as_planned(wanted.desired_slots, desired, slot_ids, others):
        return None
    if wanted.held is not None:
        return None
    closing = sa.select(study.c.deadline, study.c.funds_end, study.c.settled, study.c.pool_slots)
    row = tx.execute(closing.where(study.c.study_id == tx.study_id)).one()
    end = row.deadline if row.funds_end is None else min(row.deadline, row.funds_end)
    if row.settled is not None or tx.now >= end:
        return None
    if row.pool_slots is not None and not _paid_for(tx, wanted.desired_slots):
        return None
    wanted_of = {me: slot_ids, **others}
    theirs = [
        sa.and_(slot.c.id.in_(sorted(ids)), slot.c.id.in_(offered(name)))
        for name, ids in wanted_of.items()
    ]
    rows = tx.rows(
        sa.select(slot)
        .where(sa.or_(*theirs), slot.c.lent_to == tx.study_id, slot.c.holder.is_(None))
        .order_by(slot.c.id)
        .with_for_update()
    )
    if len(rows) != wanted.desired_slots or not gangs.alive(tx, others, ttl):
        return None
    fence = wanted.fence + 1
    holders = {slot_id: name for name, ids in wanted_of.items() for slot_id in ids}
    for name, ids in wanted_of.items():
        tx.execute(
            sa.update(slot)
            .where(slot.c.id.in_(sorted(ids)))
            .values(
                holder=name,
                study_id=tx.study_id,
                number=number,
                fence=slot.c.fence + 1,
                lease=tx.now + ttl,
            )
        )
    tx.execute(
        sa.update(trial)
        .where(trial.c.study_id == tx.study_id, trial.c.number == number)
        .values(owner=me, state="running", fence=fence)
    )
    tx.execute(
        sa.insert(segment).values(
            study_id=tx.study_id,
            number=number,
            fence=fence,
            worker=me,
            slots=len(rows),
            granted=tx.now,
            workers=len(wanted_of) if others else None,
        )
    )
    for row in rows:
        name = holders[row.id]
        tx.event("acquire", number=number, slot=row.id, fence=row.fence + 1, worker=name)
    kind = "start" if wanted.state == "ready" else "resume"
    tx.event(
        kind, number=number, fence=fence, worker=me, slots=len(rows), reason=wanted.reason,
        **beside([(name, len(ids)) for name, ids in others.items()], [row.host for row in rows]),
    )  # fmt: skip
    first, parts = len(slot_ids), []
    for name in others:
        theirs_now = [row for row in rows if holders[row.id] == name]
        parts.append(
            Part(
                name,
                first,
                tuple((row.id, row.fence + 1) for row in theirs_now),
                tuple(row.device for row in theirs_now),
            )
        )
        first += len(theirs_now)
    gangs.enlist(tx, me, number, fence, len(rows), parts)
    mine = [row for row in rows if holders[row.id] == me]
    return Grant(
        number=number,
        trial_id=wanted.trial_id,
        fence=fence,
        slots=tuple((row.id, row.fence + 1) for row in mine),
        devices=tuple(row.device for row in mine),
        others=tuple(parts),
    )


def _paid_for(tx: Transaction, more: int) -> bool:
    """Whether a study that pays for its slots pays for so many more than its trials hold.

    Where slots are free that nobody pays for, the next trial would not wait for the last one to
    leave. What a dead worker holds is on no bill. The study's row is locked: two workers may ask.
    """
    query = sa.select(study.c.pool_slots).where(study.c.study_id == tx.study_id)
    most = tx.execute(query.with_for_update(key_share=True)).scalar()
    held = sa.select(sa.func.count()).where(
        slot.c.pool == tx.pool,
        slot.c.study_id == tx.study_id,
        slot.c.holder.is_not(None),
        slot.c.lease > tx.now,
    )
    return most is None or int(tx.execute(held).scalar_one()) + more <= most


def release(
    tx: Transaction,
    me: str,
    grant: Grant,
    outcome: str,
    *,
    ended: str,
    value: float | None = None,
    stop: float | None = None,
    failures: int = 0,
    stays: bool = False,
) -> bool:
    """Give the slots back after the last rank has exited, and say how the segment ended.

    Args:
        tx: The transaction.
        me: The worker.
        grant: What :func:`acquire` returned.
        outcome: The trial's next state: paused, retired, failed or complete.
        ended: Why the segment ended: pause, resize, deadline, shutdown, died, error, ...
        value: What is to be told to Optuna, for a complete trial.
        stop: Seconds from the directive to the last rank's exit.
        failures: How many times the trial has died so far.
        stays: Whether its process is parked with the worker, to which it had better come back.

    Returns:
        False where the lease was lost: then nothing is changed.
    """
    # The plan may want it elsewhere by now: then the process is of no use.
    waits = sa.case((trial.c.desired_mode == "pause", me), else_=trial.c.desired_worker)
    owned = tx.execute(
        sa.update(trial)
        .where(
            trial.c.study_id == tx.study_id,
            trial.c.number == grant.number,
            trial.c.owner == me,
            trial.c.fence == grant.fence,
        )
        .values(owner=None, state=outcome, value=value, failures=failures)
        .values({"desired_worker": waits} if stays else {})
    ).rowcount
    if not owned:
        return False
    freed = gangs.free(tx, me, grant.number, grant.slots)
    end_segment(tx, tx.study_id, grant.number, grant.fence, ended, stop)
    tx.event(outcome, number=grant.number, fence=grant.fence, worker=me, reason=ended)
    called = [part.worker for part in grant.others]
    notify(tx, [*_who_waits(tx, grant.number, freed), *called])
    return True


def give_back(tx: Transaction, me: str, number: int, fence: int) -> bool:
    """Free a part's slots after its last rank has exited; see the store's promise."""
    freed = gangs.give_back(tx, me, number, fence)
    if freed is not None:
        notify(tx, _who_waits(tx, number, freed))
    return freed is not None


def _who_waits(tx: Transaction, number: int, freed: list[int]) -> list[str | None]:
    """The planner, the trial's next worker, and other studies' to which the slots are lent."""
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


def disown(tx: Transaction, me: str, number: int, fence: int) -> bool:
    """Give back a segment whose grant never reached its worker; see the store's promise."""
    owned = tx.execute(
        sa.select(trial)
        .where(
            trial.c.study_id == tx.study_id,
            trial.c.number == number,
            trial.c.owner == me,
            trial.c.fence == fence,
        )
        .with_for_update()
    ).first()
    if owned is None:
        return False
    held = tx.rows(
        sa.select(slot.c.id, slot.c.fence, slot.c.device)
        .where(slot.c.holder == me, slot.c.study_id == tx.study_id, slot.c.number == number)
        .order_by(slot.c.id)
    )
    grant = Grant(
        number=number,
        trial_id=owned.trial_id,
        fence=fence,
        slots=tuple((row.id, row.fence) for row in held),
        devices=tuple(row.device for row in held),
    )
    gangs.take_back(tx, grant)
    return release(
        tx, me, grant, "paused", ended="disowned", value=owned.value, failures=owned.failures
    )


def reap(tx: Transaction) -> int:
    """Free what dead workers held: the only transition that compares clocks.

    Seconds are the pool's, whatever this process was started with. A lease that ends later than
    any that could be taken now is from before the clock was set back. ``SKIP LOCKED``: a client
    frozen inside its transaction must not block the reaper.

    Returns:
        The number of slots freed.
    """
    terms = tx.execute(sa.select(pool.c.ttl, pool.c.grace).where(pool.c.name == tx.pool)).first()
    if terms is None:
        return 0
    ttl, grace = terms
    expired = tx.rows(
        sa.select(slot)
        .where(slot.c.pool == tx.pool, slot.c.holder.is_not(None))
        .where(sa.or_(slot.c.lease + grace < tx.now, slot.c.lease > tx.latest + ttl + TOLERANCE))
        .order_by(slot.c.id)
        .with_for_update(skip_locked=True)
    )
    for row in expired:
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
        )
    gangs.forget_reaped(tx, expired)
    held = sa.select(slot.c.id).where(
        slot.c.holder == trial.c.owner,
        slot.c.study_id == trial.c.study_id,
        slot.c.number == trial.c.number,
    )
    # Of every study of the pool: nobody may be left who would reap for another one.
    studies = sa.select(worker.c.study_id).where(worker.c.pool == tx.pool)
    orphans = tx.rows(
        sa.select(trial.c.number, trial.c.fence, trial.c.owner, trial.c.study_id)
        .where(
            trial.c.study_id.in_(studies),
            trial.c.state == "running",
            trial.c.owner.is_not(None),
            ~held.exists(),
        )
        .with_for_update(skip_locked=True)
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
            "lost", number=row.number, fence=row.fence, worker=row.owner, study_id=row.study_id
        )
    # A worker that renews just now locks its row first and its slots next, which we may hold.
    silent = (
        sa.select(worker.c.id)
        .where(worker.c.pool == tx.pool, worker.c.state == "live", worker.c.lease + grace < tx.now)
        .with_for_update(skip_locked=True)
    )
    names = [row.id for row in tx.rows(silent)]
    if names:
        tx.execute(sa.update(worker).where(worker.c.id.in_(names)).values(state="lost"))
    if expired:
        notify(tx)
    return len(expired)


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
        gangs.adjourn(tx, study_id, number, fence)
