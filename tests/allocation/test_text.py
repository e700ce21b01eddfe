"""The suite on the table as text, on each database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from allocation.suite import AllocationStoreTestCase
from allocation.suite.world import AllocationWorld
from stores import empty

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.engine import autocommit, connect
from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.database.schema import study as study_table
from optuna_deadline.allocation.sql import studies
from optuna_deadline.allocation.table import AllocationTable


def world_on(database: Database) -> AllocationWorld:
    """A world in a database; its studies are rows of our own table only."""

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
        with autocommit(database.engine) as connection:
            studies.insert(connection, None, values)
            row, _ = studies.select(connection, None, study)
        assert row is not None
        return AllocationTable(database, pool, row.study_id, ttl=ttl, grace=grace, now=now)

    def delete(study: str) -> None:
        with autocommit(database.engine) as connection:
            connection.execute(sa.delete(study_table).where(study_table.c.name == study))
        if isinstance(database, MemoryDatabase):
            database.forget()

    return AllocationWorld(make, delete, one_host=database.one_host)


class TestInMemory(AllocationStoreTestCase):
    @pytest.fixture
    def world(self) -> AllocationWorld:
        return world_on(MemoryDatabase())


class TestSQLite(AllocationStoreTestCase):
    @pytest.fixture
    def world(self, sqlite_url: str) -> AllocationWorld:
        return world_on(Database(connect(sqlite_url)))


@pytest.mark.postgres
class TestPostgreSQL(AllocationStoreTestCase):
    @pytest.fixture
    def world(self, table_only_url: str) -> AllocationWorld:
        empty(table_only_url)
        return world_on(Database(connect(table_only_url)))
