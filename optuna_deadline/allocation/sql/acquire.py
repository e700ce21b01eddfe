"""Acquires all slots of a gang in one transaction, or none; renews leases by holder and fence.

Rows are locked trial first, then slots by their key. Renewals are frequent, so on PostgreSQL each
is one statement, which is its own transaction: no client can freeze inside it, and it waits only
for transactions that are bounded too. SQLite uses two statements, because it has no ``WITH`` for
writes; a round trip costs nothing there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database.limits import database_now
from optuna_deadline.allocation.database.schema import (
    offer,
    segment,
    slot,
    study,
    trial,
    worker,
)
from optuna_deadline.allocation.records import GangPart, Grant, Renewal
from optuna_deadline.allocation.rules import as_planned, placement_detail
from optuna_deadline.allocation.sql import gangs
from optuna_deadline.allocation.sql.roster import offered
from optuna_deadline.allocation.sql.transaction import Transaction


def acquire(
    tx: Transaction,
    worker_id: str,
    number: int,
    slot_ids: Sequence[int],
    ttl: float,
    others: Mapping[str, Sequence[int]] | None = None,
) -> Grant | None:
    """Acquire a gang's slots for a trial that the plan assigns to this worker: all or none.

    Args:
        tx: The transaction.
        worker_id: The worker, which owns the trial from now on.
        number: The trial.
        slot_ids: Slots that it offers.
        ttl: Seconds that their leases last.
        others: By member in the plan, slots that it offers.

    Returns:
        The grant. None if the plan has changed, a slot or the trial is held, a slot is lent to
        another study, the study's deadline or the end of its money has passed, its trials would
        hold more slots than it pays for, the trial cannot train on so many, or a user holds the
        trial or drains the worker.
    """
    others = others or {}
    wanted = _lock_planned_trial(tx, worker_id, number, slot_ids, others)
    if wanted is None or not _may_grant(tx, wanted.desired_slots):
        return None
    asked = {worker_id: slot_ids, **others}
    rows = _lock_free_slots(tx, asked)
    if len(rows) != wanted.desired_slots or not gangs.leases_run(tx, others, ttl):
        return None
    fence = wanted.fence + 1
    _take_slots(tx, asked, number, ttl)
    _begin_segment(tx, worker_id, number, fence, len(rows), len(asked) if others else None)
    holders = {slot_id: name for name, ids in asked.items() for slot_id in ids}
    parts = _gang_parts(rows, holders, len(slot_ids), others)
    _write_events(tx, worker_id, wanted, rows, holders, parts)
    gangs.add_parts(tx, worker_id, number, fence, len(rows), parts)
    mine = [row for row in rows if holders[row.id] == worker_id]
    return Grant(
        number=number,
        trial_id=wanted.trial_id,
        fence=fence,
        slots=tuple((row.id, row.fence + 1) for row in mine),
        devices=tuple(row.device for row in mine),
        others=tuple(parts),
    )


def _lock_planned_trial(
    tx: Transaction,
    worker_id: str,
    number: int,
    slot_ids: Sequence[int],
    others: Mapping[str, Sequence[int]],
) -> Any:
    """Lock the trial's row if it has no owner and the plan assigns these slots to it."""
    wanted = tx.execute(
        sa.select(trial)
        .where(trial.c.study_id == tx.study_id, trial.c.number == number)
        .with_for_update()
    ).first()
    if wanted is None or wanted.owner is not None or wanted.state not in ("ready", "paused"):
        return None
    if (wanted.desired_mode, wanted.desired_worker) != (
        "run",
        worker_id,
    ) or wanted.held is not None:
        return None
    if wanted.desired_slots > (wanted.slot_limit or wanted.desired_slots):
        return None
    desired = wanted.desired_others
    return wanted if as_planned(wanted.desired_slots, desired, slot_ids, others) else None


def _may_grant(tx: Transaction, more: int) -> bool:
    """Whether the study is open and pays for so many more slots than its trials hold."""
    closing = sa.select(study.c.deadline, study.c.funds_end, study.c.settled, study.c.pool_slots)
    row = tx.execute(closing.where(study.c.study_id == tx.study_id)).one()
    end = row.deadline if row.funds_end is None else min(row.deadline, row.funds_end)
    if row.settled is not None or tx.now >= end:
        return False
    return row.pool_slots is None or _within_budget(tx, more)


def _within_budget(tx: Transaction, more: int) -> bool:
    """Whether a study with a budget pays for so many more slots than its trials hold.

    Without this check, the next trial would start on unpaid free slots before the last one has
    left. Slots of dead workers are not billed. The study's row is locked, because two workers may
    acquire at once.
    """
    query = sa.select(study.c.pool_slots).where(study.c.study_id == tx.study_id)
    most = tx.execute(query.with_for_update(key_share=True)).scalar()
    held = sa.select(sa.func.count()).where(
        slot.c.study_id == tx.study_id,
        slot.c.holder.is_not(None),
        slot.c.lease > tx.now,
    )
    return most is None or int(tx.execute(held).scalar_one()) + more <= most


def _lock_free_slots(tx: Transaction, asked: Mapping[str, Sequence[int]]) -> list[Any]:
    """Lock the free ones of the requested slots of each worker."""
    theirs = [
        sa.and_(slot.c.id.in_(sorted(ids)), slot.c.id.in_(offered(name)))
        for name, ids in asked.items()
    ]
    return tx.rows(
        sa.select(slot)
        .where(sa.or_(*theirs), slot.c.lent_to == tx.study_id, slot.c.holder.is_(None))
        .order_by(slot.c.id)
        .with_for_update()
    )


def _take_slots(
    tx: Transaction, asked: Mapping[str, Sequence[int]], number: int, ttl: float
) -> None:
    for name, ids in asked.items():
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


def _begin_segment(
    tx: Transaction, worker_id: str, number: int, fence: int, size: int, workers: int | None
) -> None:
    """Set the trial's owner and begin its segment."""
    tx.execute(
        sa.update(trial)
        .where(trial.c.study_id == tx.study_id, trial.c.number == number)
        .values(owner=worker_id, state="running", fence=fence)
    )
    tx.execute(
        sa.insert(segment).values(
            study_id=tx.study_id,
            number=number,
            fence=fence,
            worker=worker_id,
            slots=size,
            granted=tx.now,
            workers=workers,
        )
    )


def _write_events(
    tx: Transaction,
    worker_id: str,
    wanted: Any,
    rows: Sequence[Any],
    holders: Mapping[int, str],
    parts: Sequence[GangPart],
) -> None:
    """Write the events of each slot and of the segment."""
    number = wanted.number
    for row in rows:
        name = holders[row.id]
        tx.event("acquire", number=number, slot=row.id, fence=row.fence + 1, worker=name)
    kind = "start" if wanted.state == "ready" else "resume"
    given = [(part.worker, part.size) for part in parts]
    tx.event(
        kind, number=number, fence=wanted.fence + 1, worker=worker_id, slots=len(rows),
        reason=wanted.reason, **placement_detail(given, [row.host for row in rows]),
    )  # fmt: skip


def _gang_parts(
    rows: Sequence[Any], holders: Mapping[int, str], first: int, others: Iterable[str]
) -> list[GangPart]:
    """Each member's part; its ranks follow those of the members before it."""
    parts = []
    for name in others:
        given = [row for row in rows if holders[row.id] == name]
        pairs = tuple((row.id, row.fence + 1) for row in given)
        parts.append(GangPart(name, first, pairs, tuple(row.device for row in given)))
        first += len(given)
    return parts


Held = Collection[tuple[int, int]]

_ME = sa.bindparam("me", type_=sa.String())
_LEASE: sa.BindParameter[float] = sa.bindparam("lease", type_=sa.Double())
_HELD: sa.BindParameter[Any] = sa.bindparam("held", expanding=True)


def _worker(lease: sa.ColumnElement[float]) -> Any:
    offers = sa.select(sa.func.count()).where(offer.c.worker == _ME).scalar_subquery()
    return (
        sa.update(worker)
        .where(worker.c.id == _ME)
        .values(lease=lease, state="live")
        .returning(offers.label("offers"))
    )


def _slots(lease: sa.ColumnElement[float]) -> Any:
    return (
        sa.update(slot)
        .where(slot.c.holder == _ME, sa.tuple_(slot.c.id, slot.c.fence).in_(_HELD))
        .values(lease=lease)
        .returning(slot.c.id, slot.c.fence)
    )


def _renewal_statement(now: sa.ColumnElement[float]) -> Any:
    lease = now + sa.bindparam("ttl", type_=sa.Double())
    start = sa.select(now.label("now")).subquery("start")
    mine, kept = _worker(lease).cte("mine"), _slots(lease).cte("kept")
    joined = start.outerjoin(mine, sa.true()).outerjoin(kept, sa.true())
    return sa.select(start.c.now, mine.c.offers, kept.c.id, kept.c.fence).select_from(joined)


#: Built once: to build them at each call would take longer than the server needs.
_TWO = _worker(_LEASE), _slots(_LEASE)
_BY_DATABASE = _renewal_statement(database_now())
_BY_TEST = _renewal_statement(sa.bindparam("now", type_=sa.Double()))


def renew(tx: Transaction, worker_id: str, held: Held, ttl: float) -> Renewal:
    """Renew in a transaction."""
    own, slots = _TWO
    given = {"me": worker_id, "lease": tx.now + ttl}
    found = tx.connection.execute(own, given).first()
    kept = tx.connection.execute(slots, {**given, "held": list(held)}) if held else ()
    return Renewal(
        now=tx.now,
        kept=frozenset((row.id, row.fence) for row in kept),
        offers=found.offers if found else None,
    )


def renew_in_one_statement(
    connection: sa.Connection, worker_id: str, held: Held, ttl: float, now: float | None = None
) -> Renewal:
    """Renew by a single statement.

    Args:
        connection: In AUTOCOMMIT, to a database with ``WITH`` for writes.
        worker_id: The worker.
        held: Its slots, each with its fence.
        ttl: Seconds that the leases last.
        now: The time, if a test sets it.
    """
    given = {"me": worker_id, "ttl": ttl, "held": list(held)}
    if now is None:
        rows = connection.execute(_BY_DATABASE, given).all()
    else:
        rows = connection.execute(_BY_TEST, {**given, "now": now}).all()
    return Renewal(
        now=rows[0].now,
        kept=frozenset((row.id, row.fence) for row in rows if row.id is not None),
        offers=rows[0].offers,
    )
