"""Bringing a study's deadline forward, so that no test waits for it."""

from __future__ import annotations

from optuna_deadline.allocation.sql.database.engine import autocommit
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.allocation.sql.studies import bring_forward


def end_within(table: AllocationTable, seconds: float) -> bool:
    """Let a study end so many seconds from now; False if it ends before that anyway."""
    with autocommit(table._tx.engine) as connection:
        return bring_forward(connection, table.study_id, table.now() + seconds)
