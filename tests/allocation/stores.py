"""Worlds on each kind of store, for the suite and the stateful test alike."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from allocation.suite.world import AllocationWorld

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.database.schema import metadata, version
from optuna_deadline.allocation.database.schema import study as study_table
from optuna_deadline.allocation.database.transaction import Scope
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.study import rows as studies


def empty(url: str) -> None:
    """Delete every row on PostgreSQL: quicker than a database for each test."""
    names = ", ".join(table.name for table in metadata.sorted_tables if table.name != version.name)
    with autocommit(connect(url).engine) as connection:
        connection.exec_driver_sql(f"TRUNCATE {names} RESTART IDENTITY CASCADE")


def memory_world(kind: type[AllocationTable] = AllocationTable) -> AllocationWorld:
    """A world in memory, with the table or a subclass of it."""
    return world_on(MemoryDatabase(), kind)


def sql_world(url: str) -> AllocationWorld:
    """A world in a database; its studies are rows of our own table only."""
    return world_on(connect(url))


def world_on(database: Database, kind: type[AllocationTable] = AllocationTable) -> AllocationWorld:
    """A world in a database, with the table or a subclass of it."""

    def make(
        *,
        pool: str,
        study: str,
        started: float,
        deadline: float,
        ttl: float,
        grace: float,
        now: Callable[[], float],
    ) -> AllocationTable:
        values = {
            "name": study,
            "direction": "minimize",
            "started": started,
            "deadline": deadline,
            "duration": None,
            "policy": "hypersched",
            "parameters": {},
        }
        with database.each_alone(Scope("", 0, now)) as tx:
            studies.insert(tx, None, values)
            row, _ = studies.select(tx, None, study)
        assert row is not None
        return kind(database, pool, row.study_id, ttl=ttl, grace=grace, now=now)

    def delete(study: str) -> None:
        with autocommit(database.engine) as connection:
            connection.execute(sa.delete(study_table).where(study_table.c.name == study))
        if isinstance(database, MemoryDatabase):
            database.forget()

    return AllocationWorld(make, delete, one_host=database.one_host)
