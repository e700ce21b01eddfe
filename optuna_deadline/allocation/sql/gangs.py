"""Gangs over several workers: their parts, their rendezvous, and the release of their slots.

The owner of the trial acquires the slots of all members in one transaction, so a gang is complete
or does not exist. Each slot is held by the worker that offers it. Only that worker renews and
releases it, because only there the exit of the last rank is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database.notify import notify
from optuna_deadline.allocation.database.schema import meeting, part, slot, trial, worker
from optuna_deadline.allocation.records import GangMembership, GangPart, Grant, Rendezvous
from optuna_deadline.allocation.rules import CLOCK_TOLERANCE
from optuna_deadline.allocation.sql.transaction import Transaction
from optuna_deadline.allocation.sql.writes import guard


def leases_run(tx: Transaction, names: Iterable[str], ttl: float) -> bool:
    """Whether these workers' leases are valid: a silent worker could start no rank."""
    wanted = sorted(names)
    found = sa.select(sa.func.count()).where(
        worker.c.id.in_(wanted),
        worker.c.state == "live",
        worker.c.lease > tx.now,
        worker.c.lease <= tx.latest + ttl + CLOCK_TOLERANCE,
    )
    return not wanted or int(tx.execute(found).scalar_one()) == len(wanted)


def add_parts(
    tx: Transaction, worker_id: str, number: int, fence: int, size: int, parts: Sequence[GangPart]
) -> None:
    """Write the parts of members for a new grant, and notify the members."""
    for given in parts:
        tx.execute(
            sa.insert(part).values(
                study_id=tx.study_id,
                number=number,
                fence=fence,
                worker=given.worker,
                leader=worker_id,
                size=size,
                first=given.first_rank,
                slots=given.slots,
                devices=given.devices,
            )
        )
    if parts:
        notify(tx, [given.worker for given in parts])


def publish_rendezvous(
    tx: Transaction, worker_id: str, grant: Grant, rendezvous: Rendezvous
) -> None:
    """Publish the rendezvous; the first one stays.

    Raises:
        LeaseLost: The worker does not own the trial under the grant's fence.
    """
    guard(tx, worker_id, grant)
    if (
        tx.execute(sa.select(meeting.c.number).where(*_rows_of(tx, meeting, grant))).first()
        is None
    ):
        tx.execute(
            sa.insert(meeting).values(
                study_id=tx.study_id,
                number=grant.number,
                fence=grant.fence,
                address=rendezvous.address,
                port=rendezvous.port,
                link=rendezvous.link_port,
                key=rendezvous.key,
                resume=rendezvous.resume_location,
            )
        )
        notify(tx, [given.worker for given in grant.others])


def memberships(tx: Transaction, worker_id: str) -> list[GangMembership]:
    """The parts that a worker gives, and those of the gangs that it was granted."""
    same = sa.and_(
        trial.c.study_id == part.c.study_id,
        trial.c.number == part.c.number,
    )
    said = sa.and_(
        meeting.c.study_id == part.c.study_id,
        meeting.c.number == part.c.number,
        meeting.c.fence == part.c.fence,
    )
    query = (
        sa.select(
            part,
            trial.c.trial_id,
            sa.and_(trial.c.owner == part.c.leader, trial.c.fence == part.c.fence).label("stands"),
            meeting.c.address,
            meeting.c.port,
            meeting.c.link,
            meeting.c.key,
            meeting.c.resume,
        )
        .select_from(part.join(trial, same).outerjoin(meeting, said))
        .where(part.c.study_id == tx.study_id)
        .where(sa.or_(part.c.worker == worker_id, part.c.leader == worker_id))
        .order_by(part.c.number, part.c.fence, part.c.first)
    )
    return [_membership(row) for row in tx.rows(query)]


def release_part(tx: Transaction, worker_id: str, number: int, fence: int) -> list[int] | None:
    """Free a part's slots after its last rank has exited; None if there is no such part.

    Returns:
        The freed slots: those that were not reaped before.
    """
    mine = (
        part.c.study_id == tx.study_id,
        part.c.number == number,
        part.c.fence == fence,
        part.c.worker == worker_id,
    )
    row = tx.execute(sa.select(part).where(*mine)).first()
    if row is None:
        return None
    freed = free(tx, worker_id, number, row.slots)
    tx.execute(sa.delete(part).where(*mine))  # after the slots, as the reaper does
    return freed


def free(
    tx: Transaction, worker_id: str, number: int, slots: Collection[tuple[int, int]]
) -> list[int]:
    """Free slots that the worker still holds under these fences; returns them."""
    freed = tx.execute(
        sa.update(slot)
        .where(slot.c.holder == worker_id, sa.tuple_(slot.c.id, slot.c.fence).in_(list(slots)))
        .values(holder=None, lease=None, number=None, study_id=None, fence=slot.c.fence + 1)
        .returning(slot.c.id, slot.c.fence)
    ).all()
    for row in freed:
        tx.event("release", number=number, slot=row.id, fence=row.fence, worker=worker_id)
    return [row.id for row in freed]


def reclaim_parts(tx: Transaction, grant: Grant) -> None:
    """Free the members' slots of a segment whose owner does not know of it.

    Before the rendezvous is published, no rank is forked.
    """
    if (
        tx.execute(sa.select(meeting.c.number).where(*_rows_of(tx, meeting, grant))).first()
        is not None
    ):
        return
    for row in tx.rows(sa.select(part.c.worker).where(*_rows_of(tx, part, grant))):
        release_part(tx, row.worker, grant.number, grant.fence)


def close_rendezvous(tx: Transaction, study_id: int, number: int, fence: int) -> None:
    """Delete the rendezvous of a segment that has ended."""
    tx.execute(
        sa.delete(meeting).where(
            meeting.c.study_id == study_id, meeting.c.number == number, meeting.c.fence == fence
        )
    )


def delete_reaped_parts(tx: Transaction, reaped: Sequence[Any]) -> None:
    """Delete the parts of reaped slots: their workers are dead, or will find out."""
    pairs = {(row.id, row.fence) for row in reaped}
    holders = sorted({row.holder for row in reaped})
    for row in tx.rows(sa.select(part).where(part.c.worker.in_(holders))) if holders else ():
        if not pairs.isdisjoint(row.slots):
            tx.execute(
                sa.delete(part).where(
                    part.c.study_id == row.study_id,
                    part.c.number == row.number,
                    part.c.fence == row.fence,
                    part.c.worker == row.worker,
                )
            )


def _rows_of(tx: Transaction, table: sa.Table, grant: Grant) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        table.c.study_id == tx.study_id,
        table.c.number == grant.number,
        table.c.fence == grant.fence,
    )


def _membership(row: Any) -> GangMembership:
    where = None
    if row.address is not None:
        where = Rendezvous(row.address, row.port, row.link, row.key, row.resume)
    return GangMembership(
        number=row.number,
        trial_id=row.trial_id,
        fence=row.fence,
        leader=row.leader,
        size=row.size,
        part=GangPart(row.worker, row.first, row.slots, row.devices),
        active=bool(row.stands),
        rendezvous=where,
    )
