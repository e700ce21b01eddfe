"""The scale benchmark runs; and what a planner reads does not grow with the pool around it."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest
from growth import instructions

from benchmarks.scale.planning import make_planner
from benchmarks.scale.situation import POOL, STEPS, Size, build, write_rows
from benchmarks.support.postgres import PostgresServer
from optuna_deadline.allocation.database.access import listening
from optuna_deadline.allocation.database.opening import connect, disconnect
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.planning.pool_leader import MAX_BATCH, PoolLeader
from optuna_deadline.study import policy_choice

pytestmark = pytest.mark.nightly_but(r"^$")

SMALL, LARGE = Size(8, studies=2, served=1), Size(32, studies=8, served=1)


def test_both_sizes_have_studies_of_the_same_size() -> None:
    assert (SMALL.share, SMALL.breadth) == (LARGE.share, LARGE.breadth) == (40, 4)
    assert (LARGE.capacity, LARGE.workers, LARGE.trials) == (320, 32, 640)


@pytest.mark.postgres
def test_a_planner_and_a_newcomer_read_no_more_in_a_larger_pool(postgres: PostgresServer) -> None:
    """As many statements, which return as many rows."""
    small, large = (_read(postgres, size) for size in (SMALL, LARGE))
    assert small == large
    assert small[0] > 20


def _read(server: PostgresServer, size: Size) -> tuple[int, int]:
    """Statements and rows of a planner's second look, and of a worker that joins."""
    name, made = f"od_scale_{uuid.uuid4().hex[:8]}", build(size)
    database = connect(server.create_database(name))
    write_rows(made, database.engine)
    rows: list[int] = []

    me, table = made.planner_of(1), AllocationTable(database, POOL, 1)
    policy = policy_choice.make("hypersched", {"max_resource": STEPS})
    planner = make_planner(table, policy, me, 80, lambda: 0.0)
    planner.tick()
    with listening(lambda _, __, cursor: rows.append(max(0, cursor.rowcount))):
        planner.tick()
        table.register("newcomer", "another host", 1, ["gpu:0"], 0)
        table.orders(me)
        table.renew(me, [])
    disconnect(database)
    server.drop_database(name)
    return len(rows), sum(rows)


@pytest.mark.postgres
def test_a_pool_that_is_dealt_anew_is_lent_in_short_transactions(postgres: PostgresServer) -> None:
    """Six hundred slots change hands; no commit holds more than its portion of them."""
    size = Size(120, studies=2, served=2)
    name, made = f"od_scale_{uuid.uuid4().hex[:8]}", build(size)
    with made.tables[1].writing() as tx:
        tx.run(
            "UPDATE @slot SET lent_to = CASE WHEN id = 1 THEN 2 ELSE 1 END, holder = NULL, "
            "lease = NULL, study_id = NULL, number = NULL"
        )
    database = connect(postgres.create_database(name))
    write_rows(made, database.engine)
    table = AllocationTable(database, POOL, 1)
    commits = [0]

    def note(statement: str, _: Any, cursor: Any) -> None:
        if "INSERT INTO" in statement and "event" in statement:
            commits[-1] += max(0, cursor.rowcount)
        if statement == "COMMIT":
            commits.append(0)

    leader = PoolLeader(table, "even", made.planner_of(1))
    with listening(note):
        assert leader.tick() and not leader.tick()
    lent = Counter(slot.lent_to for slot in table.slots())
    events = len(table.pool_events(kinds=["lend"]))
    disconnect(database)
    postgres.drop_database(name)
    assert lent == {1: 600, 2: 600} and events >= 599
    assert max(commits) <= MAX_BATCH


def test_the_leaders_work_grows_with_the_pool_and_no_faster() -> None:
    def work(size: Size, divider: str) -> int:
        made = build(size)
        leader = PoolLeader(made.tables[1], divider, made.planner_of(1), lambda: made.now)
        return instructions(leader.tick)

    for divider in ("even", "fair"):
        small, large = (work(Size(hosts, studies=hosts // 4), divider) for hosts in (16, 64))
        assert large < 5 * small, divider
