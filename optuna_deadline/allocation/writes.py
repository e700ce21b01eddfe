"""Fenced writes of a running segment: reports, checkpoints, progress.

Each first locks the trial's row under (owner, fence); a zombie finds nothing to lock and changes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import sqlalchemy as sa

from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.schema import checkpoint, report, segment, trial
from optuna_deadline.allocation.transaction import Transaction
from optuna_deadline.checkpoints import Checkpoint
from optuna_deadline.errors import LeaseLost
from optuna_deadline.stores import Location, located


def guard(tx: Transaction, me: str, grant: Grant) -> None:
    """Lock the trial as its owner.

    Raises:
        LeaseLost: Somebody else owns the trial, or it was reaped.
    """
    mine = tx.execute(
        sa.select(trial.c.number)
        .where(
            trial.c.study_id == tx.study_id,
            trial.c.number == grant.number,
            trial.c.owner == me,
            trial.c.fence == grant.fence,
        )
        .with_for_update()
    ).first()
    if mine is None:
        raise LeaseLost(f"Trial {grant.number} no longer belongs to segment {grant.fence}.")


def add_report(
    tx: Transaction, me: str, grant: Grant, step: int, value: float, trained: float
) -> None:
    """Record a report; a step redone after a crash keeps its first value."""
    guard(tx, me, grant)
    known = sa.select(report.c.id).where(
        report.c.study_id == tx.study_id, report.c.number == grant.number, report.c.step == step
    )
    if tx.execute(known).first() is None:
        tx.execute(
            sa.insert(report).values(
                study_id=tx.study_id,
                number=grant.number,
                step=step,
                value=value,
                fence=grant.fence,
                slots=grant.size,
                trained=trained,
                at=tx.now,
            )
        )


def add_checkpoint(
    tx: Transaction, me: str, grant: Grant, new: Checkpoint, keep: int
) -> list[Location]:
    """Commit a checkpoint; returns the files that no row names any more.

    The newest ``keep`` stay, and the one with the best value in either direction. A file has one
    row: with two, after an answer was lost, it would go with the one while the other names it.
    """
    guard(tx, me, grant)
    tx.execute(
        sa.delete(checkpoint).where(
            checkpoint.c.study_id == tx.study_id,
            checkpoint.c.number == grant.number,
            checkpoint.c.path == str(new.path),
        )
    )
    tx.execute(
        sa.insert(checkpoint).values(
            study_id=tx.study_id,
            number=grant.number,
            fence=grant.fence,
            step=new.step,
            value=none_if_nan(new.value),
            path=str(new.path),
            size=new.size,
            checksum=new.checksum,
            at=tx.now,
        )
    )
    rows = tx.rows(
        sa.select(checkpoint.c.id, checkpoint.c.value, checkpoint.c.path)
        .where(checkpoint.c.study_id == tx.study_id, checkpoint.c.number == grant.number)
        .order_by(checkpoint.c.id.desc())
    )
    kept = kept_ids([(row.id, row.value) for row in rows], keep)
    gone = [row for row in rows if row.id not in kept]
    if gone:
        tx.execute(sa.delete(checkpoint).where(checkpoint.c.id.in_([row.id for row in gone])))
    tx.event("checkpoint", number=grant.number, fence=grant.fence, worker=me, step=new.step)
    return [located(row.path) for row in gone]


def kept_ids(newest_first: Sequence[tuple[int, float | None]], keep: int) -> set[int]:
    """Which checkpoints stay, of (id, value): the newest, the lowest and the highest value."""
    kept: set[int] = set()
    lowest: tuple[int, float] | None = None
    highest: tuple[int, float] | None = None
    for place, (row_id, value) in enumerate(newest_first):
        if place < keep:
            kept.add(row_id)
        if value is not None:
            if lowest is None or value < lowest[1]:
                lowest = row_id, value
            if highest is None or value > highest[1]:
                highest = row_id, value
    if lowest is not None and highest is not None:
        kept |= {lowest[0], highest[0]}
    return kept


def none_if_nan(value: float | None) -> float | None:
    """SQLite knows no NaN, and nothing can be compared with it."""
    return None if value is None or math.isnan(value) else value


def set_progress(
    tx: Transaction,
    me: str,
    grant: Grant,
    *,
    startup: float | None,
    position_from: float | None,
    position_to: float | None,
    trained: float | None,
    horizon: int | None,
    batch: int | None = None,
) -> None:
    """Say how far and how fast the segment has come."""
    guard(tx, me, grant)
    tx.execute(
        sa.update(segment)
        .where(
            segment.c.study_id == tx.study_id,
            segment.c.number == grant.number,
            segment.c.fence == grant.fence,
        )
        .values(
            startup=startup, position_from=position_from, position_to=position_to, trained=trained
        )
    )
    said = {"horizon": horizon, "batch": batch}
    if known := {name: number for name, number in said.items() if number is not None}:
        tx.execute(
            sa.update(trial)
            .where(trial.c.study_id == tx.study_id, trial.c.number == grant.number)
            .values(**known)
        )
