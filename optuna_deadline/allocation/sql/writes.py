"""Fenced writes of a running segment: reports, checkpoints, progress, limits.

Each first locks the trial's row under (owner, fence). A worker that lost its lease finds no row to
lock and changes nothing. On PostgreSQL, :mod:`single_statement` writes reports and progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from optuna_deadline.allocation.database.schema import checkpoint, report, segment, trial
from optuna_deadline.allocation.records import ALIVE, Grant, NewReport
from optuna_deadline.allocation.rules import kept_ids, none_if_nan
from optuna_deadline.allocation.sql.requests import notify_planner
from optuna_deadline.allocation.sql.transaction import Transaction
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location, parse_location
from optuna_deadline.errors import LeaseLost

#: Columns of the segment, and of its trial.
OF_SEGMENT, OF_TRIAL = (
    ("startup", "position_from", "position_to", "trained"),
    ("horizon", "batch", "pausable"),
)

_AT_ONCE = 500  # names or ids in one statement
_ADD_EACH = sqlite.insert(report).on_conflict_do_nothing()


def guard(tx: Transaction, worker_id: str, grant: Grant) -> None:
    """Lock the trial as its owner.

    Raises:
        LeaseLost: Another worker owns the trial, or it was reaped.
    """
    mine = tx.execute(
        sa.select(trial.c.number)
        .where(
            trial.c.study_id == tx.study_id,
            trial.c.number == grant.number,
            trial.c.owner == worker_id,
            trial.c.fence == grant.fence,
        )
        .with_for_update()
    ).first()
    if mine is None:
        raise lease_lost(grant)


def lease_lost(grant: Grant) -> LeaseLost:
    """The error if the guard finds no row."""
    return LeaseLost(f"Trial {grant.number} no longer belongs to segment {grant.fence}.")


def add_reports(tx: Transaction, worker_id: str, grant: Grant, new: Sequence[NewReport]) -> None:
    """Record reports in a transaction; a repeated step keeps its first value."""
    guard(tx, worker_id, grant)
    if not new:
        return
    rows = [
        {
            "study_id": tx.study_id,
            "number": grant.number,
            "step": step,
            "value": value,
            "fence": grant.fence,
            "slots": grant.size,
            "trained": trained,
            "at": tx.now,
        }
        for step, value, trained in new
    ]
    tx.connection.execute(_ADD_EACH, rows)


def add_checkpoint(
    tx: Transaction, worker_id: str, grant: Grant, new: Sequence[Checkpoint], keep: int
) -> list[Location]:
    """Commit checkpoints, the newest last; returns the files that no row names any more.

    The newest ``keep`` stay, and those with the best value in each direction. A file has one row:
    with two, after a lost answer, it would be deleted with one while the other names it.
    """
    guard(tx, worker_id, grant)
    named = {str(one.path): one for one in new}
    rows = tx.rows(
        sa.select(checkpoint.c.id, checkpoint.c.value, checkpoint.c.path)
        .where(checkpoint.c.study_id == tx.study_id, checkpoint.c.number == grant.number)
        .order_by(checkpoint.c.id.desc())
    )
    there = [row for row in rows if row.path not in named]
    coming = {-place: one for place, one in enumerate(named.values(), start=1)}  # no ids yet
    kept = kept_ids(
        [
            *((place, none_if_nan(one.value)) for place, one in reversed(coming.items())),
            *((row.id, row.value) for row in there),
        ],
        keep,
    )
    if gone := [row.id for row in rows if row.path in named or row.id not in kept]:
        tx.execute(sa.delete(checkpoint).where(checkpoint.c.id.in_(gone)))
    staying = [one for place, one in coming.items() if place in kept]
    if staying:
        tx.connection.execute(
            sa.insert(checkpoint),
            [
                {
                    "study_id": tx.study_id,
                    "number": grant.number,
                    "fence": grant.fence,
                    "step": one.step,
                    "value": none_if_nan(one.value),
                    "path": str(one.path),
                    "size": one.size,
                    "checksum": one.checksum,
                    "at": tx.now,
                }
                for one in staying
            ],
        )
    for one in staying:
        tx.event(
            "checkpoint", number=grant.number, fence=grant.fence, worker=worker_id, step=one.step
        )
    replaced = [one.path for place, one in coming.items() if place not in kept]
    return [*(parse_location(row.path) for row in there if row.id not in kept), *replaced]


def drop_checkpoints(tx: Transaction, *paths: Location) -> list[Location]:
    """Delete the rows of checkpoints of ended trials; returns their files."""
    ended = sa.select(trial.c.number).where(
        trial.c.study_id == tx.study_id, trial.c.state.not_in(ALIVE)
    )
    found = []
    for first in range(0, len(paths), _AT_ONCE):
        part = [str(path) for path in paths[first : first + _AT_ONCE]]
        found += tx.rows(
            sa.select(checkpoint.c.id, checkpoint.c.path).where(
                checkpoint.c.study_id == tx.study_id,
                checkpoint.c.path.in_(part),
                checkpoint.c.number.in_(ended),
            )
        )
    for first in range(0, len(found), _AT_ONCE):
        gone = [row.id for row in found[first : first + _AT_ONCE]]
        tx.execute(sa.delete(checkpoint).where(checkpoint.c.id.in_(gone)))
    return [parse_location(row.path) for row in found]


def set_progress(
    tx: Transaction, worker_id: str, grant: Grant, said: Mapping[str, float | None]
) -> None:
    """Record the progress and speed of a segment; None keeps the trial's known values."""
    guard(tx, worker_id, grant)
    tx.execute(
        sa.update(segment)
        .where(
            segment.c.study_id == tx.study_id,
            segment.c.number == grant.number,
            segment.c.fence == grant.fence,
        )
        .values({name: said[name] for name in OF_SEGMENT})
    )
    if known := {name: said[name] for name in OF_TRIAL if said[name] is not None}:
        tx.execute(
            sa.update(trial)
            .where(trial.c.study_id == tx.study_id, trial.c.number == grant.number)
            .values(known)
        )


def limit_slots(tx: Transaction, worker_id: str, grant: Grant, slots: int, reason: str) -> None:
    """Record the most slots on which the trial can train; see the store."""
    guard(tx, worker_id, grant)
    lowered = tx.execute(
        sa.update(trial)
        .where(
            trial.c.study_id == tx.study_id,
            trial.c.number == grant.number,
            sa.or_(trial.c.slot_limit.is_(None), trial.c.slot_limit > slots),
        )
        .values(slot_limit=slots, limit_reason=reason)
    ).rowcount
    if lowered:
        tx.event(
            "limit",
            number=grant.number,
            fence=grant.fence,
            worker=worker_id,
            slots=slots,
            reason=reason,
        )
        notify_planner(tx)
