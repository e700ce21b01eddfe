"""What runs on a loop finds its rows by an index, however many there are."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks.support.postgres import PostgresServer
from optuna_deadline.allocation.database.access import Database, listening
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.opening import connect, disconnect
from optuna_deadline.allocation.database.schema import PREFIX
from optuna_deadline.allocation.records import Assignment, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.live.watcher import _KINDS

pytestmark = pytest.mark.postgres

ROWS, STUDIES = 100_000, 100
GROWING = ("report", "event", "checkpoint", "segment", "trial")
#: A hundred studies of a thousand trials, a hundredth of which are still in training.
FILL = """
INSERT INTO {p}study (study_id, name, direction, started, deadline, policy, parameters)
  SELECT g, 'study' || g, 'minimize', 0, 9e9, 'hypersched', '{{}}' FROM generate_series(0, 99) g;
INSERT INTO {p}pool SELECT 'pool' || g, 0, 30, 15 FROM generate_series(0, 99) g;
INSERT INTO {p}leader SELECT 'pool' || g, NULL, 0, 0 FROM generate_series(0, 99) g;
INSERT INTO {p}trial SELECT g % 100, g / 100, g,
  CASE WHEN g / 100 % 100 = 99 THEN 'paused' ELSE 'retired' END,
  1, NULL, 'stop', 'w' || g % 1000, 0, 'done', 0, 40, 0.5, true, 0
  FROM generate_series(0, {last}) g;
INSERT INTO {p}segment SELECT g % 100, g / 100, 1, 'w', 1, g, g + 1, 'stop', 1, 1, 0, 9, 9
  FROM generate_series(0, {last}) g;
INSERT INTO {p}report (study_id, number, step, value, fence, slots, trained, at)
  SELECT g % 100, g / 1000, g / 100 % 10, 0.5, 1, 1, 1, g FROM generate_series(0, {last}) g;
INSERT INTO {p}checkpoint (study_id, number, fence, step, value, path, size, checksum, at)
  SELECT g % 100, g / 100, 1, 1, 0.5, 'x', 1, 'x', g FROM generate_series(0, {last}) g;
INSERT INTO {p}event (at, pool, kind, study_id, number)
  SELECT g, 'pool' || g % 100, 'checkpoint', g % 100, 1 FROM generate_series(0, {last}) g;
"""


@pytest.fixture(scope="module")
def grown(postgres: PostgresServer) -> Iterator[Database]:
    """A database with many rows in each table that grows."""
    name = f"od_grown_{uuid.uuid4().hex[:8]}"
    database = connect(postgres.create_database(name))
    with database.engine.begin() as connection:
        connection.execute(sa.text(FILL.format(p=PREFIX, last=ROWS - 1)))
    with autocommit(database.engine) as connection:
        connection.exec_driver_sql("ANALYZE")
    yield database
    disconnect(database)
    postgres.drop_database(name)


@pytest.fixture
def sent(grown: Database) -> Iterator[list[tuple[str, Any]]]:
    """Every statement that is sent meanwhile, with its parameters."""
    statements: list[tuple[str, Any]] = []

    with listening(lambda text, params, _: statements.append((text.split("; ")[-1], params))):
        yield statements


def _work(table: AllocationTable) -> None:
    """All that a worker, a planner and a view do, once."""
    slots = [slot.id for slot in table.register("me", "host", 1, [], 2)]
    term = table.elect_planner("me")
    assert term is not None
    table.open_trial("me", term, 5000, 5000)
    table.write_plan("me", term, [Assignment(5000, "run", "me", 1, "test")])
    grant = table.acquire("me", 5000, slots[:1])
    assert grant is not None
    table.renew("me", grant.slots)
    table.add_reports("me", grant, [NewReport(1, 0.5, 1.0)])
    table.add_checkpoint("me", grant, Checkpoint(5000, 1, 1, 0.5, Path("x"), 1, "x"))
    table.set_progress(
        "me", grant, startup=1, position_from=0, position_to=1, trained=1, horizon=9
    )
    table.orders("me")
    table.trials()
    table.unreported_trials()
    table.workers()
    table.segments(since=ROWS - 10)
    table.reports(after=ROWS - 200)
    table.reports(number=5000)
    table.checkpoints(5000)
    table.trained_before(5000, 1)
    table.events(after=ROWS - 10, kinds=_KINDS)
    table.events(kinds=_KINDS)
    table.release("me", grant, "paused", ended="pause")
    table.reap()
    table.conclude("me", term, 5000, "retired", "others were better")
    table.retire("me", term, {5000: "others were better"})
    table.mark_ends_reported(5000)
    table.set_gate("me", term, False)


@pytest.mark.slow
def test_no_scan_of_a_table_that_grows(
    grown: Database, sent: list[tuple[str, Any]], plan_of: Callable[[str, Any], str]
) -> None:
    _work(AllocationTable(grown, "pool7", 7))
    asked = [(s, p) for s, p in sent if re.match(r"SELECT|UPDATE|DELETE|WITH", s) and PREFIX in s]
    assert len(asked) > 30
    scan = re.compile(rf"Seq Scan on {PREFIX}({'|'.join(GROWING)})\b")
    for statement, parameters in asked:
        plan = plan_of(statement, parameters)
        assert not scan.search(plan), f"{statement}\n{plan}"


def test_the_check_finds_a_scan(plan_of: Callable[[str, Any], str]) -> None:
    assert "Seq Scan" in plan_of(f"SELECT * FROM {PREFIX}report WHERE trained = 7", ())


@pytest.fixture
def plan_of(grown: Database) -> Callable[[str, Any], str]:
    """How the server would carry out a statement."""

    def explain(statement: str, parameters: Any) -> str:
        with grown.engine.connect() as connection:
            rows = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
            return "\n".join(row[0] for row in rows)

    return explain
