"""Studies that are over cost those that are not nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from allocation.suite.world import AllocationWorld
from stores import empty, sql_world

from optuna_deadline.allocation.database.access import listening
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.database.schema import event, offer, tenant, worker


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """A database for the table alone."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    found: str = request.getfixturevalue("table_only_url")
    empty(found)
    return found


@contextmanager
def written(table: sa.Table) -> Iterator[list[int]]:
    """How many rows of a table each statement updates meanwhile."""
    rows: list[int] = []

    def note(statement: str, _: Any, cursor: Any) -> None:
        if statement.startswith(f"UPDATE {table.name} "):
            rows.append(cursor.rowcount)

    with listening(note):
        yield rows


def live_through(world: AllocationWorld, count: int) -> None:
    """Studies of the pool, one after the other, each with two incarnations of its worker."""
    for number in range(count):
        study = f"past {number}"
        for me in (f"w{number}", f"again{number}"):
            world.join(me, cpus=2, study=study)
            world.table(study=study).leave(me)
        term = world.table(study=study).elect_planner("planner")
        assert term is not None
        world.table(study=study).settle("planner", term)


def rows_of(url: str, table: sa.Table) -> int:
    with connect(url).engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_offers_do_not_outlive_their_study(url: str) -> None:
    world = sql_world(url)
    world.join("me", cpus=2, study="now")
    live_through(world, 5)
    assert rows_of(url, offer) == 2


def test_an_account_of_a_settled_study_is_kept_no_more(url: str) -> None:
    world = sql_world(url)
    world.join("me", cpus=2, study="now")
    live_through(world, 5)
    table = world.table(study="now")
    term = table.elect_leader("me")
    assert term is not None
    with written(tenant) as rows:
        table.lend("me", term, {}, {})
    assert rows == [1]


def test_events_go_with_their_study(url: str) -> None:
    world = sql_world(url)
    live_through(world, 1)
    assert world.delete_study is not None and rows_of(url, event) > 0
    world.delete_study("past 0")
    assert rows_of(url, event) == 0


def test_a_newcomer_looks_at_the_workers_of_its_slots_alone(sqlite_url: str) -> None:
    """However many there were in the database: a search for each offer, and no scan."""
    world = sql_world(sqlite_url)
    world.join("w", cpus=2, study="now")
    database, statements = connect(sqlite_url), []

    def note(statement: str, parameters: Any, _: Any) -> None:
        if statement.startswith(f"DELETE FROM {offer.name} "):
            statements.append((statement, parameters))

    with listening(note):
        world.join("me", cpus=2, study="next")
    assert len(statements) == 2, "one for each slot"
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {statements[0][0]}", statements[0][1]
        )
        assert not [row[3] for row in rows if row[3].startswith(f"SCAN {worker.name}")]
