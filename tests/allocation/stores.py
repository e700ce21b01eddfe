"""Worlds on each kind of store, for the suite and the stateful test alike."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from allocation.suite.world import AllocationWorld

from optuna_deadline.allocation.database.engine import autocommit, connect
from optuna_deadline.allocation.database.schema import metadata, version
from optuna_deadline.allocation.database.schema import study as study_table
from optuna_deadline.allocation.memory.state import MemoryState
from optuna_deadline.allocation.memory.store import MemoryTable
from optuna_deadline.allocation.sql import studies
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.allocation.store import AllocationStore


def memory_world(kind: type[MemoryTable] = MemoryTable) -> AllocationWorld:
    """A world in memory, with the store or a subclass of it."""
    state = MemoryState()
    ids: dict[str, int] = {}

    def make(
        *,
        pool: str,
        study: str,
        started: float,
        deadline: float,
        ttl: float,
        grace: float,
        now: Callable[[], float],
    ) -> AllocationStore:
        return kind(
            pool,
            ids.setdefault(study, len(ids) + 1),
            now=now,
            started=started,
            deadline=deadline,
            ttl=ttl,
            grace=grace,
            state=state,
        )

    return AllocationWorld(make, lambda study: state.delete_study(ids[study]))


def empty(url: str) -> None:
    """Delete every row on PostgreSQL: quicker than a database for each test."""
    names = ", ".join(table.name for table in metadata.sorted_tables if table.name != version.name)
    with autocommit(connect(url)) as connection:
        connection.exec_driver_sql(f"TRUNCATE {names} RESTART IDENTITY CASCADE")


def sql_world(url: str) -> AllocationWorld:
    """A world in a database; its studies are rows of our own table only."""
    engine = connect(url)

    def make(
        *,
        pool: str,
        study: str,
        started: float,
        deadline: float,
        ttl: float,
        grace: float,
        now: Callable[[], float],
    ) -> AllocationStore:
        values = {
            "name": study,
            "direction": "minimize",
            "started": started,
            "deadline": deadline,
            "duration": None,
            "policy": "hypersched",
            "parameters": {},
        }
        with autocommit(engine) as connection:
            studies.insert(connection, None, values)
            row, _ = studies.select(connection, None, study)
        assert row is not None
        return AllocationTable(engine, pool, row.study_id, ttl=ttl, grace=grace, now=now)

    def delete(study: str) -> None:
        with autocommit(engine) as connection:
            connection.execute(sa.delete(study_table).where(study_table.c.name == study))

    return AllocationWorld(make, delete, one_host=url.startswith("sqlite"))
