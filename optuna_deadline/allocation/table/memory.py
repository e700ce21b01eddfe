"""The table in memory, for simulations and tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.table import GRACE, TTL, AllocationTable


class MemoryTable(AllocationTable):
    """The table of one pool for one study, whose rows end with the process.

    Args:
        pool: The pool's name.
        study_id: The study's id; its row is written unless it is there.
        now: The time in seconds.
        started: When the study began.
        deadline: When it ends.
        ttl: Seconds that a lease lasts without renewal; the pool's first worker sets it.
        grace: Seconds after a lease's end before it may be reaped.
        database: The database of another table, to share its slots and studies.
        name: The study's name.
    """

    database: MemoryDatabase

    def __init__(
        self,
        pool: str = "pool",
        study_id: int = 1,
        *,
        now: Callable[[], float],
        started: float = 0.0,
        deadline: float = math.inf,
        ttl: float = TTL,
        grace: float = GRACE,
        database: MemoryDatabase | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            database or MemoryDatabase(), pool, study_id, ttl=ttl, grace=grace, now=now
        )
        with self.writing() as tx:
            tx.run(
                "INSERT INTO @study (study_id, name, direction, started, deadline, policy, "
                "parameters) VALUES (:study, :name, 'minimize', :started, :deadline, '', '{}') "
                "ON CONFLICT DO NOTHING",
                name=name or f"study {study_id}", started=started, deadline=deadline,
            )  # fmt: skip

    def writing(self) -> AbstractContextManager[Transaction]:
        """A transaction for rows that no transition writes."""
        return self._tx()
