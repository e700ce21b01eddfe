"""Tables of earlier versions are migrated or refused with a sentence."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
import sqlalchemy as sa

from optuna_deadline.allocation.sql import studies
from optuna_deadline.allocation.sql.database import schema
from optuna_deadline.allocation.sql.database.engine import autocommit, connect, disconnect
from optuna_deadline.allocation.sql.database.migrations import VERSION, version
from optuna_deadline.errors import SchemaMismatch
from optuna_deadline.study import terms

_OLD_INDEX = f"ix_{schema.PREFIX}rung_value"


def _set_version(engine: sa.Engine, number: int) -> None:
    with engine.begin() as connection:
        connection.execute(sa.update(schema.version).values(version=number))


def _make_version_15(url: str) -> None:
    """What version 15 had: another index, and rows of earlier versions without some values."""
    engine = connect(url)
    study = optuna.load_study(storage=url, study_name="s")
    terms.fix(engine, study, "1h")
    with autocommit(engine) as connection:
        studies.record(connection, 1, 0, {0: 0.5, 1: 0.25})
        studies.record(connection, 1, 1, {0: math.nan})
        rung = schema.rung.name
        connection.exec_driver_sql(f"CREATE INDEX {_OLD_INDEX} ON {rung} (study_id, rung, value)")
        connection.execute(sa.update(schema.rung).values(sequence=None))
        connection.execute(sa.update(schema.study).values(key=None, rule=None))
    _set_version(engine, 15)
    disconnect(engine)


def _describe(engine: sa.Engine) -> list[Any]:
    """Names of tables, columns, indexes and triggers."""
    inspector = sa.inspect(engine)
    found: list[Any] = []
    for name in sorted(n for n in inspector.get_table_names() if n.startswith(schema.PREFIX)):
        columns = [(c["name"], str(c["type"])) for c in inspector.get_columns(name)]
        found.append((name, columns, sorted(str(i["name"]) for i in inspector.get_indexes(name))))
    triggers = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' ORDER BY name",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname",
    }
    with engine.connect() as connection:
        return [*found, connection.exec_driver_sql(triggers[engine.dialect.name]).all()]


def test_tables_of_version_15_are_migrated_with_their_rows(storage_url: str) -> None:
    optuna.create_study(storage=storage_url, study_name="s")
    fresh = connect(storage_url)
    described = _describe(fresh)
    disconnect(fresh)
    _make_version_15(storage_url)
    engine = connect(storage_url)
    assert _describe(engine) == described
    study = optuna.load_study(storage=storage_url, study_name="s")
    found = terms.read(engine, study)
    assert found is not None and found.rule == "hypersched" and len(terms.key(engine, study)) == 36
    with autocommit(engine) as connection:
        assert version(connection) == VERSION
        rows = studies.new_values(connection, 1, -1)
        assert {row.total for row in rows} == {3}
        values = {(row.rung, row.number): row.value for row in rows}
        assert values == {(0, 0): 0.5, (1, 0): 0.25, (0, 1): None}
        studies.record(connection, 1, 2, {0: 0.1})
        studies.record(connection, 1, 2, {0: 0.9})  # a known value stays
        [row] = studies.new_values(connection, 1, 0)
        assert (row.total, row.number, row.value) == (4, 2, 0.1)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (VERSION + 1, "upgrade optuna-deadline on this machine"),
        (14, "version 14 of an early checkout: finish their studies with that checkout"),
    ],
)
def test_other_versions_are_refused(storage_url: str, number: int, sentence: str) -> None:
    optuna.create_study(storage=storage_url)
    engine = connect(storage_url)
    _set_version(engine, number)
    disconnect(engine)
    with pytest.raises(SchemaMismatch, match=sentence):
        connect(storage_url)
