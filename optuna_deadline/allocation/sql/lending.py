"""The transitions of a pool: its leader lends slots to studies, and planners set claims.

The leader is elected like planners, by a lease with a term. Lending sets the wanted state: a held
slot stays held until its holder releases it.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from optuna_deadline.allocation.database.notify import notify
from optuna_deadline.allocation.database.schema import (
    leader,
    offer,
    slot,
    study,
    tenant,
    worker,
)
from optuna_deadline.allocation.records import StudyClaim, Tenant
from optuna_deadline.allocation.rules import election_outcome
from optuna_deadline.allocation.sql.plans import guard_planner, has_left
from optuna_deadline.allocation.sql.transaction import Transaction
from optuna_deadline.errors import LeaseLost


def elect_leader(tx: Transaction, worker_id: str, ttl: float) -> int | None:
    """Become or stay the pool's leader; returns the term, or None while another one is elected."""
    row = tx.execute(sa.select(leader).where(leader.c.pool == tx.pool)).first()
    won = (
        None
        if row is None
        else election_outcome(row.holder, row.term, row.expires, worker_id, tx.now, ttl)
    )
    if row is None or won is None or (won != row.term and has_left(tx, worker_id)):
        return None
    elected = tx.execute(
        sa.update(leader)
        .where(leader.c.pool == tx.pool, leader.c.term == row.term)
        .where(leader.c.holder.is_not_distinct_from(row.holder))  # else another was elected
        .values(holder=worker_id, term=won, expires=tx.now + ttl)
    )
    if not elected.rowcount:
        return None
    if won != row.term:
        tx.event("lead", worker=worker_id, term=won)
    return won


def set_claim(tx: Transaction, worker_id: str, term: int, claim: StudyClaim) -> None:
    """Set the study's claim, under its planner's term."""
    guard_planner(tx, worker_id, term)
    tx.execute(
        sa.update(tenant)
        .where(tenant.c.pool == tx.pool, tenant.c.study_id == tx.study_id)
        .values(live=claim.live, most=claim.most, done=claim.done, remaining=claim.remaining)
    )


def tenants(tx: Transaction) -> list[Tenant]:
    """The pool's unsettled studies, with or without workers."""
    query = (
        sa.select(tenant, study.c.name, study.c.deadline)
        .join(study, study.c.study_id == tenant.c.study_id)
        .where(tenant.c.pool == tx.pool, study.c.settled.is_(None))
        .order_by(tenant.c.study_id)
    )
    return [
        Tenant(
            study_id=row.study_id,
            name=row.name,
            weight=row.weight,
            joined=row.joined,
            deadline=row.deadline,
            claim=None
            if row.most is None
            else StudyClaim(row.live, row.most, row.done, row.remaining),
            served=row.served,
            entitled=row.entitled,
        )
        for row in tx.rows(query)
    ]


def lend(
    tx: Transaction,
    worker_id: str,
    term: int,
    lent: Mapping[int, int],
    shares: Mapping[int, int],
    fair: Mapping[int, float],
) -> None:
    """Lend slots to studies and update the accounts; see the store."""
    guard_leader(tx, worker_id, term)
    # Accounts first: a waiter for a trial may hold its study's row, a waiter for a slot a trial.
    open_ = sa.select(study.c.study_id).where(study.c.settled.is_(None))
    here = tenant.c.pool == tx.pool, tenant.c.study_id.in_(open_)
    locked = sa.select(tenant.c.study_id).where(*here).order_by(tenant.c.study_id)
    list(tx.execute(locked.with_for_update()))
    tx.execute(
        sa.update(tenant)
        .where(*here)
        .values(
            served=tenant.c.served + (tx.now - tenant.c.counted) * _by_study(shares),
            entitled=tenant.c.entitled + (tx.now - tenant.c.counted) * _by_study(fair),
            counted=tx.now,
        )
    )
    if lent:
        rows = sa.select(slot.c.id).where(slot.c.id.in_(lent)).order_by(slot.c.id)
        list(tx.execute(rows.with_for_update()))  # in one order, as everywhere
        for study_id in sorted(set(lent.values())):
            its = [slot_id for slot_id in lent if lent[slot_id] == study_id]
            tx.execute(sa.update(slot).where(slot.c.id.in_(its)).values(lent_to=study_id))
        for slot_id in sorted(lent):
            tx.event("lend", slot=slot_id, term=term, worker=worker_id, study_id=lent[slot_id])
        notify(tx, _planners(tx) | _offering_workers(tx, lent))


def _by_study(figures: Mapping[int, float]) -> sa.ColumnElement[float]:
    if not figures:
        return sa.literal(0.0)
    return sa.case({s: float(f) for s, f in figures.items()}, value=tenant.c.study_id, else_=0.0)


def guard_leader(tx: Transaction, worker_id: str, term: int) -> None:
    """Lock the leader's row for this term.

    Raises:
        LeaseLost: Another term has begun.
    """
    rules = tx.execute(
        sa.select(leader.c.term)
        .where(leader.c.pool == tx.pool, leader.c.holder == worker_id, leader.c.term == term)
        .with_for_update(read=True)
    ).first()
    if rules is None:
        raise LeaseLost(f"Term {term} of pool {tx.pool!r} is over.")


def _planners(tx: Transaction) -> set[str | None]:
    query = sa.select(tenant.c.planner).where(tenant.c.pool == tx.pool)
    return set(tx.execute(query).scalars())


def _offering_workers(tx: Transaction, lent: Mapping[int, int]) -> set[str | None]:
    """The workers that may acquire the slots now."""
    query = (
        sa.select(offer.c.worker)
        .join(worker, worker.c.id == offer.c.worker)
        .join(slot, slot.c.id == offer.c.slot_id)
        .where(slot.c.id.in_(lent), worker.c.study_id == slot.c.lent_to, worker.c.state == "live")
    )
    return set(tx.execute(query).scalars())
