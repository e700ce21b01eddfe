"""A database that an older version made is brought to what a new one is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa

from optuna_deadline.allocation.sql import studies
from optuna_deadline.allocation.sql.database import schema
from optuna_deadline.allocation.sql.database.engine import autocommit, connect
from optuna_deadline.allocation.sql.database.migrations import (
    MIGRATIONS,
    _add_delete_triggers,
    migrate,
    version,
)
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.errors import SchemaMismatch
from optuna_deadline.testing.postgres import PostgresServer

HERE = Path(__file__).parent


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A database with Optuna's tables and none of ours."""
    name = f"od_migrated_{uuid.uuid4().hex[:8]}"
    url = postgres.create_database(name)
    storage = optuna.storages.RDBStorage(url)
    storage.remove_session()
    storage.engine.dispose()
    yield url
    postgres.drop_database(name)


def _make_version_2(url: str) -> None:
    """The tables as version 2 left them: its statements are kept in a file."""
    engine = sa.create_engine(url)
    statements = (HERE / f"schema_2.{engine.dialect.name}.sql").read_text().split(";\n")
    with engine.begin() as connection:
        for statement in filter(str.strip, statements):
            connection.exec_driver_sql(statement)
        _add_delete_triggers(connection)
        connection.execute(sa.insert(schema.version).values(id=1, version=2))
    engine.dispose()


def _options(index: Any) -> str:
    return repr({k: str(v) for k, v in index.get("dialect_options", {}).items()})


def _describe(engine: sa.Engine) -> dict[str, Any]:
    """All that an inspector sees of our tables."""
    inspector = sa.inspect(engine)
    found = {}
    for name in sorted(n for n in inspector.get_table_names() if n.startswith(schema.PREFIX)):
        found[name] = {
            "columns": [
                (c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)
            ],
            "key": inspector.get_pk_constraint(name)["constrained_columns"],
            "indexes": sorted(
                (str(i["name"]), i["column_names"], _options(i))
                for i in inspector.get_indexes(name)
            ),
            "unique": sorted(u["column_names"] for u in inspector.get_unique_constraints(name)),
            "foreign": sorted(
                (f["constrained_columns"], f["referred_table"], str(f["options"]))
                for f in inspector.get_foreign_keys(name)
            ),
            "checks": sorted(str(c["name"]) for c in inspector.get_check_constraints(name)),
        }
    return found


def test_a_migrated_schema_is_a_fresh_one(storage_url: str) -> None:
    optuna.storages.RDBStorage(storage_url)
    _make_version_2(storage_url)
    migrated = connect(storage_url)
    with migrated.connect() as connection:
        assert version(connection) == len(MIGRATIONS)
    described = _describe(migrated)
    with migrated.begin() as connection:  # and now from nothing, in the same place
        for table in reversed(schema.metadata.sorted_tables):
            table.drop(connection)
        if migrated.dialect.name == "sqlite":  # it is on Optuna's table and stays
            connection.exec_driver_sql(f"DROP TRIGGER {schema.study.name}_follows")
    migrate(migrated)
    fresh = _describe(migrated)
    assert described == fresh
    assert all(fresh[index.table.name]["indexes"] for index in schema.SINCE_3)


def test_slots_keep_who_offers_them(storage_url: str) -> None:
    """Version 5 moved the one provider of a slot to a table of offers."""
    optuna.create_study(storage=storage_url)
    _make_version_2(storage_url)
    p = schema.PREFIX
    engine = sa.create_engine(storage_url)
    with engine.begin() as connection:
        for statement in (
            f"INSERT INTO {p}study (study_id, name, direction, started, deadline, policy, "
            "parameters) VALUES (1, 's', 'minimize', 0, 9e9, 'fifo', '{}')",
            f"INSERT INTO {p}pool VALUES ('pool', 7, 30, 15)",
            f"INSERT INTO {p}leader VALUES ('pool', 'w', 3, 0)",
            f"INSERT INTO {p}worker VALUES ('w', 'pool', 1, 'host', 1, 'live', 0, 9e9)",
            f"INSERT INTO {p}slot (host, device, pool, provider, fence, holder, study_id, number, "
            "lease) VALUES ('host', 'gpu:0', 'pool', 'w', 5, 'w', 1, 0, 9e9), "
            "('host', 'gpu:1', 'pool', 'gone', 2, NULL, NULL, NULL, NULL)",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()
    table = AllocationTable(connect(storage_url), "pool", 1, now=lambda: 9e9 - 1)
    held, orphan = table.slots()
    assert (held.offered_by, held.lent_to, held.holder, held.fence) == (("w",), 1, "w", 5)
    assert (orphan.offered_by, orphan.lent_to) == ((), None)
    assert [(row.study_id, row.weight) for row in table.tenants()] == [(1, 1.0)]
    assert (table.elect_planner("w"), table.elect_leader("w")) == (1, 4)


def test_rungs_are_counted_from_what_was_there_and_as_they_come(storage_url: str) -> None:
    """Version 6 keeps how many values a rung has."""
    optuna.create_study(storage=storage_url)
    _make_version_2(storage_url)
    engine = sa.create_engine(storage_url)
    p = schema.PREFIX
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO {p}study (study_id, name, direction, started, deadline, policy, "
            "parameters) VALUES (1, 's', 'minimize', 0, 9e9, 'fifo', '{}')"
        )
        connection.exec_driver_sql(
            f"INSERT INTO {p}rung (study_id, rung, number, value) VALUES (1, 0, 0, 0.5), "
            "(1, 0, 1, NULL), (1, 1, 0, 0.25)"
        )
    engine.dispose()
    with autocommit(connect(storage_url)) as connection:
        studies.record(connection, 1, 2, {0: 0.1, 1: 0.2, 2: 0.3})
        studies.record(connection, 1, 2, {0: 0.9, 1: 0.9})  # known already: not counted again
        rows = studies.new_values(connection, 1, -1)
        assert {row.total for row in rows} == {6}
        assert {row.rung: row.value for row in rows if row.number == 2} == {
            0: 0.1, 1: 0.2, 2: 0.3,
        }  # fmt: skip


def test_nobody_has_asked_for_anything_yet(storage_url: str) -> None:
    """Version 7 lets people ask, of trials and workers that were there before too."""
    optuna.create_study(storage=storage_url)
    _make_version_2(storage_url)
    p = schema.PREFIX
    engine = sa.create_engine(storage_url)
    with engine.begin() as connection:
        for statement in (
            f"INSERT INTO {p}study (study_id, name, direction, started, deadline, policy, "
            "parameters) VALUES (1, 's', 'minimize', 0, 9e9, 'fifo', '{}')",
            f"INSERT INTO {p}pool VALUES ('pool', 7, 30, 15)",
            f"INSERT INTO {p}worker VALUES ('w', 'pool', 1, 'host', 1, 'live', 0, 9e9)",
            f"INSERT INTO {p}trial (study_id, number, trial_id, state, fence, desired_mode, "
            "desired_slots, reason, desired_since, told, failures) "
            f"VALUES (1, 0, 1, 'paused', 3, 'pause', 0, 'rest', 0, {_false(engine)}, 0)",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()
    table = AllocationTable(connect(storage_url), "pool", 1, now=lambda: 9e9 - 1)
    [line], [worker] = table.trials(), table.workers()
    assert (line.held, line.pinned, worker.drained) == (None, None, None)
    assert table.hold(0, True) and table.pin(0, 2) and table.drain("host", True) == 1
    [line], [worker] = table.trials(), table.workers()
    assert (line.held, line.pinned, worker.drained) == (9e9 - 1, 2, 9e9 - 1)


def _false(engine: sa.Engine) -> str:
    return "false" if engine.dialect.name == "postgresql" else "0"


def test_a_newer_schema_is_refused_in_words(storage_url: str) -> None:
    optuna.storages.RDBStorage(storage_url)
    engine = connect(storage_url)
    with engine.begin() as connection:
        connection.execute(sa.update(schema.version).values(version=len(MIGRATIONS) + 1))
    with pytest.raises(SchemaMismatch, match="upgrade optuna-deadline on this machine"):
        migrate(engine)
