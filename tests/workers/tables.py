"""Looking at a study's table, and waiting for what other processes do to it."""

from __future__ import annotations

import time
from collections.abc import Callable

import optuna
import sqlalchemy as sa

from optuna_deadline.allocation import schema
from optuna_deadline.allocation.engine import open_table
from optuna_deadline.allocation.table import AllocationTable


def table_of(study: optuna.Study, pool: str | None = None) -> AllocationTable:
    """The study's table, to look at."""
    return AllocationTable(open_table(study), pool or study.study_name, study._study_id)


def end_within(table: AllocationTable, seconds: float) -> None:
    """Bring a study's deadline forward, as no user can."""
    row = schema.study
    soon = table.now() + seconds
    update = (
        sa.update(row)
        .where(row.c.study_id == table.study_id)
        .where(row.c.deadline > soon, row.c.settled.is_(None))
        .values(deadline=soon)
    )
    with table._tx.engine.begin() as connection:
        connection.execute(update)


def wait_until(condition: Callable[[], object], seconds: float = 60, every: float = 0.05) -> None:
    """Poll for something that happens in another process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(every)
