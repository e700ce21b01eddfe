"""A table on each database, with the time driven by the test."""

from __future__ import annotations

from dataclasses import dataclass, field

import optuna
import sqlalchemy as sa

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.records import Assignment, Grant
from optuna_deadline.allocation.table import AllocationTable


@dataclass
class World:
    """One study's table and a clock that stands still unless it is moved."""

    study: optuna.Study
    database: Database
    study_id: int
    deadline: float
    time: float
    tables: dict[str, AllocationTable] = field(default_factory=dict)

    @property
    def engine(self) -> sa.Engine:
        """The engine of its database."""
        return self.database.engine

    def table(self, pool: str = "pool") -> AllocationTable:
        """The table of a pool; leases live 30 s, graces 15 s."""
        if pool not in self.tables:
            self.tables[pool] = AllocationTable(
                self.database, pool, self.study_id, ttl=30, grace=15, now=lambda: self.time
            )
        return self.tables[pool]

    def join(self, me: str, cpus: int = 2, host: str = "host", pool: str = "pool") -> list[int]:
        """Register a worker; returns its slots' ids."""
        return [slot.id for slot in self.table(pool).register(me, host, 1, [], cpus)]

    def plan(self, worker: str, slots: int = 1, number: int | None = None) -> int:
        """Elect a planner and let it want a trial on a worker; returns the trial's number."""
        table = self.table()
        term = table.elect_planner("planner")
        assert term is not None
        if number is None:
            trial = self.study.ask()
            number = trial.number
            table.open_trial("planner", term, number, trial._trial_id)
        table.write_plan("planner", term, [Assignment(number, "run", worker, slots, "test")])
        return number

    def grant(self, me: str, slots: int = 1) -> Grant:
        """A worker that trains a trial on some of its slots."""
        mine = [slot.id for slot in self.table().slots() if me in slot.offered_by]
        number = self.plan(me, slots)
        granted = self.table().acquire(me, number, mine[:slots])
        assert granted is not None
        return granted
