"""The very same suite on memory, SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
from allocation.suite import AllocationStoreTestCase
from allocation.suite.world import AllocationWorld
from stores import empty, memory_world, sql_world


class TestMemory(AllocationStoreTestCase):
    @pytest.fixture
    def world(self) -> AllocationWorld:
        return memory_world()


class TestSQLite(AllocationStoreTestCase):
    @pytest.fixture
    def world(self, sqlite_url: str) -> AllocationWorld:
        return sql_world(sqlite_url)


@pytest.mark.postgres
class TestPostgreSQL(AllocationStoreTestCase):
    @pytest.fixture
    def world(self, table_only_url: str) -> AllocationWorld:
        empty(table_only_url)
        return sql_world(table_only_url)
