"""The planner's transitions: elected by a lease with a term that every write checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database.notify import notify
from optuna_deadline.allocation.database.schema import pool, study, tenant, trial, worker
from optuna_deadline.allocation.records import ALIVE, Assignment
from optuna_deadline.allocation.rules import (
    duration_detail,
    election_outcome,
    placement_detail,
    types_detail,
)
from optuna_deadline.allocation.sql.roster import living
from optuna_deadline.allocation.sql.transaction import Transaction
from optuna_deadline.errors import LeaseLost

#: Lines of a plan in one statement; statements with many lines compile slowly.
_LINES = 100


def elect_planner(tx: Transaction, worker_id: str, ttl: float) -> int | None:
    """Become or stay the study's planner; returns the term, or None while another is elected."""
    row = tx.execute(sa.select(tenant).where(*_own_tenant_rows(tx))).first()
    if row is None:
        return None
    won = election_outcome(row.planner, row.term, row.expires, worker_id, tx.now, ttl)
    if won is None or (won != row.term and (has_left(tx, worker_id) or moved_pool(tx, worker_id))):
        return None
    elected = tx.execute(
        sa.update(tenant)
        .where(*_own_tenant_rows(tx), tenant.c.term == row.term)
        .where(tenant.c.planner.is_not_distinct_from(row.planner))  # else another was elected
        .values(planner=worker_id, term=won, expires=tx.now + ttl)
    )
    if not elected.rowcount:
        return None
    if won != row.term:
        tx.event("elect", worker=worker_id, term=won)
    return won


def has_left(tx: Transaction, worker_id: str) -> bool:
    """Whether a worker has left: its thread may run for election once more after that.

    Its row is locked until the election is over, so that it leaves before or after it and hands
    over what was won. It is locked before the elected row, as in leaving, so that both lock in one
    order; a pending renewal is waited for as well.
    """
    state = sa.select(worker.c.state).where(worker.c.id == worker_id)
    return bool(tx.execute(state.with_for_update(read=True)).scalar() == "left")


def moved_pool(tx: Transaction, worker_id: str) -> bool:
    """Whether the study moved to another pool while a worker was silent."""
    joined = sa.select(worker.c.registered).where(worker.c.id == worker_id).scalar_subquery()
    return bool(
        living(
            tx,
            worker.c.study_id == tx.study_id,
            worker.c.pool != tx.pool,
            worker.c.registered > joined,
        )
    )


def _own_tenant_rows(tx: Transaction) -> tuple[sa.ColumnElement[bool], ...]:
    return tenant.c.pool == tx.pool, tenant.c.study_id == tx.study_id


def guard_planner(tx: Transaction, worker_id: str, term: int) -> None:
    """Lock the planner's row for this term.

    Raises:
        LeaseLost: Another term has begun.
    """
    rules = tx.execute(
        sa.select(tenant.c.term)
        .where(*_own_tenant_rows(tx), tenant.c.planner == worker_id, tenant.c.term == term)
        .with_for_update(read=True)
    ).first()
    if rules is None:
        raise LeaseLost(f"Term {term} of study {tx.study_id} in pool {tx.pool!r} is over.")


def open_trial(tx: Transaction, worker_id: str, term: int, number: int, trial_id: int) -> None:
    """Add a new Optuna trial to the table; one that is there stays as it is."""
    guard_planner(tx, worker_id, term)
    known = sa.select(trial.c.number).where(
        trial.c.study_id == tx.study_id, trial.c.number == number
    )
    if tx.execute(known).first() is not None:
        return
    tx.execute(
        sa.insert(trial).values(
            study_id=tx.study_id,
            number=number,
            trial_id=trial_id,
            state="ready",
            fence=0,
            desired_mode="pause",
            desired_slots=0,
            reason="new",
            desired_since=tx.now,
            told=False,
            failures=0,
        )
    )
    tx.event("open", number=number, term=term)


def write(
    tx: Transaction,
    worker_id: str,
    term: int,
    changes: Iterable[Assignment],
    seconds: float | None = None,
) -> int:
    """Write the changes of a plan and its duration; returns the new epoch."""
    guard_planner(tx, worker_id, term)
    lines = sorted(changes, key=lambda planned: planned.number)
    concerned: list[str | None] = []
    for first in range(0, len(lines), _LINES):
        concerned += _write_lines(tx, lines[first : first + _LINES])
    for planned in lines:
        concerned += [planned.worker, *[name for name, _ in planned.others]]
        tx.event(
            "plan",
            number=planned.number,
            term=term,
            worker=planned.worker,
            mode=planned.mode,
            slots=planned.slots,
            reason=planned.reason,
            **placement_detail(planned.others),
            **duration_detail(seconds),
        )
        seconds = None
    epoch = tx.execute(
        sa.update(pool)
        .where(pool.c.name == tx.pool)
        .values(epoch=pool.c.epoch + 1)
        .returning(pool.c.epoch)
    ).scalar_one()
    notify(tx, concerned)
    return int(epoch)


def _write_lines(tx: Transaction, lines: Sequence[Assignment]) -> Sequence[str | None]:
    """Write some lines in one statement; returns the owners of their trials."""
    numbers = [planned.number for planned in lines]
    of_lines = (
        trial.c.study_id == tx.study_id,
        trial.c.number.in_(numbers),
        trial.c.state.in_(ALIVE),
    )
    owners = sa.select(trial.c.owner).where(*of_lines).order_by(trial.c.number)
    # Rows are locked in one order.
    held: Sequence[str | None] = tx.execute(owners.with_for_update()).scalars().all()

    def each(column: sa.Column[Any], values: Iterable[object]) -> sa.ColumnElement[Any]:
        typed = [sa.literal(value, column.type) for value in values]
        return sa.case(dict(zip(numbers, typed, strict=True)), value=trial.c.number)

    tx.execute(
        sa.update(trial)
        .where(*of_lines)
        .values(
            desired_mode=each(trial.c.desired_mode, (one.mode for one in lines)),
            desired_worker=each(trial.c.desired_worker, (one.worker for one in lines)),
            desired_slots=each(trial.c.desired_slots, (one.slots for one in lines)),
            desired_others=each(trial.c.desired_others, (one.others or None for one in lines)),
            reason=each(trial.c.reason, (one.reason for one in lines)),
            desired_since=tx.now,
        )
    )
    return held


def conclude(
    tx: Transaction,
    worker_id: str,
    term: int,
    number: int,
    state: str,
    reason: str,
    value: float | None = None,
    *,
    unreported: bool = False,
) -> bool:
    """End a trial without a worker; see the store."""
    guard_planner(tx, worker_id, term)
    open_to_it: sa.ColumnElement[bool] = trial.c.state.in_(ALIVE)
    if unreported:
        open_to_it |= trial.c.state.in_(("retired", "failed")) & trial.c.told.is_(False)
    ended = tx.execute(
        sa.update(trial)
        .where(
            trial.c.study_id == tx.study_id,
            trial.c.number == number,
            trial.c.owner.is_(None),
            open_to_it,
        )
        .values(state=state, value=value, desired_mode="stop", desired_slots=0, reason=reason)
    ).rowcount
    if ended:
        tx.event(state, number=number, term=term, worker=worker_id, reason=reason)
    return bool(ended)


def retire(tx: Transaction, worker_id: str, term: int, reasons: Mapping[int, str]) -> int:
    """Retire trials without a worker, those with one reason in one statement."""
    guard_planner(tx, worker_id, term)
    by_reason: dict[str, list[int]] = {}
    for number in sorted(reasons):
        by_reason.setdefault(reasons[number], []).append(number)
    ended: list[int] = []
    for reason, numbers in by_reason.items():
        rows = tx.execute(
            sa.update(trial)
            .where(
                trial.c.study_id == tx.study_id,
                trial.c.number.in_(numbers),
                trial.c.owner.is_(None),
                trial.c.state.in_(ALIVE),
            )
            .values(
                state="retired", value=None, desired_mode="stop", desired_slots=0, reason=reason
            )
            .returning(trial.c.number)
        )
        ended += rows.scalars()
    for number in sorted(ended):
        tx.event("retired", number=number, term=term, worker=worker_id, reason=reasons[number])
    return len(ended)


def mark_ends_reported(tx: Transaction, *numbers: int) -> None:
    """Record that Optuna knows the ends of these trials."""
    tx.execute(
        sa.update(trial)
        .where(trial.c.study_id == tx.study_id, trial.c.number.in_(sorted(numbers)))
        .values(told=True)
    )


def set_gate(tx: Transaction, worker_id: str, term: int, is_open: bool) -> None:
    """Open or close the gate for every process of the study."""
    guard_planner(tx, worker_id, term)
    changed = tx.execute(
        sa.update(study)
        .where(
            study.c.study_id == tx.study_id,
            study.c.gate_closed.is_not(None) if is_open else study.c.gate_closed.is_(None),
        )
        .values(gate_closed=None if is_open else tx.now)
    ).rowcount
    if changed:
        tx.event("gate", term=term, worker=worker_id, open=is_open)


def resize_pool(
    tx: Transaction,
    worker_id: str,
    term: int,
    slots: int,
    funds_end: float,
    types: Mapping[str, int] | None = None,
    seen: tuple[int | None, float | None] | None = None,
) -> bool:
    """Set the number of slots that the study pays for; see the store."""
    guard_planner(tx, worker_id, term)
    row = lock_study(tx)
    if row is None or (types is None and (row.pool_slots, row.funds_end) == (slots, funds_end)):
        return row is not None
    if seen is not None and seen != (row.pool_slots, row.funds_end):
        return False
    tx.execute(
        sa.update(study)
        .where(study.c.study_id == tx.study_id)
        .values(pool_slots=slots, funds_end=funds_end)
    )
    tx.event(
        "pool",
        term=term,
        worker=worker_id,
        slots=slots,
        before=row.pool_slots or 0,
        until=funds_end,
        **types_detail(types),
    )
    notify(tx)
    return True


def lock_study(tx: Transaction) -> sa.Row[Any] | None:
    """The study's row, locked until the transaction ends."""
    query = sa.select(study).where(study.c.study_id == tx.study_id)
    found: sa.Row[Any] | None = tx.execute(query.with_for_update(key_share=True)).first()
    return found


def settle(tx: Transaction, worker_id: str, term: int, seen: float | None = None) -> bool:
    """Close the study once every trial has its end; see the store."""
    guard_planner(tx, worker_id, term)
    row = lock_study(tx)
    if row is None or seen not in (None, row.deadline):
        return False
    if row.settled is None:
        tx.execute(sa.update(study).where(study.c.study_id == tx.study_id).values(settled=tx.now))
        tx.event("settle", term=term, worker=worker_id)
    notify(tx)
    return True
