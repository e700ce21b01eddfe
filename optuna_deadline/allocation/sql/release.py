"""Releasing: a holder gives its slots back, and says how the segment ended.

Guarded by holder and fence, never by a clock: who has lost its lease changes nothing.
"""

from __future__ import annotations

import sqlalchemy as sa

from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.sql import gangs
from optuna_deadline.allocation.sql.database.notify import notify
from optuna_deadline.allocation.sql.database.schema import (
    offer,
    segment,
    slot,
    tenant,
    trial,
    worker,
)
from optuna_deadline.allocation.sql.database.transaction import Transaction


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
        grant: What :func:`~optuna_deadline.allocation.sql.acquire.acquire` returned.
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
