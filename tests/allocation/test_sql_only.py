"""What only a database has: hosts that share a file or do not, and rows that cascade."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from allocation.suite.world import AllocationWorld
from stores import empty, sql_world

from optuna_deadline.allocation.database import limits
from optuna_deadline.allocation.database.access import REGISTRATION, listening
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.opening import connect, open_table
from optuna_deadline.allocation.database.schema import worker
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import Assignment, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import HistoryReader, table_of
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.study import agreement
from optuna_deadline.study.terms import Given
from optuna_deadline.worker.database_errors import (
    DATABASE_ERRORS,
    advice_for,
    describe_database_error,
)


def test_sqlite_from_a_second_host_is_refused(sqlite_url: str) -> None:
    world = sql_world(sqlite_url)
    world.join("a", host="here")
    with pytest.raises(DeadlineError, match="SQLite serves one host only"):
        world.join("b", host="there")


@pytest.mark.postgres
def test_postgresql_serves_several_hosts(table_only_url: str) -> None:
    empty(table_only_url)
    world = sql_world(table_only_url)
    world.join("a", host="here")
    world.join("b", host="there")
    assert {slot.host for slot in world.table().slots()} == {"here", "there"}


def test_a_study_is_looked_for_in_the_pool_where_a_worker_came_last(table_only_url: str) -> None:
    empty(table_only_url)
    world = sql_world(table_only_url)
    for name, pool in (("a", "one"), ("b", "two"), ("c", "one")):
        table = world.table(pool)
        table.register(name, "host", 1, [], 1)
        table.leave(name)
        reader = world.open("elsewhere")
        reader.follow_study()
        assert reader.pool == pool
        world.time += 1


@pytest.mark.postgres
def test_reaping_does_not_wait_for_a_client_frozen_in_its_renewal(table_only_url: str) -> None:
    """It holds its worker's row and may want the slots that the reaper has: a deadlock."""
    empty(table_only_url)
    world = sql_world(table_only_url)
    world.join("a", cpus=1)
    world.grant("a")
    world.time += 46
    with connect(table_only_url).engine.begin() as frozen:
        frozen.execute(sa.update(worker).where(worker.c.id == "a").values(lease=world.time))
        assert world.table().reap() == 1


def test_what_is_renewed_while_a_reader_stands_still_is_not_from_the_future(
    table_only_url: str,
) -> None:
    """It read the time, was put aside, and looks at leases that were taken since."""
    empty(table_only_url)
    world = sql_world(table_only_url)
    world.join("a", cpus=1)
    grant = world.grant("a")
    table, late = world.table(), 5.0
    read_at, world.time = world.time, world.time + late
    table.renew("a", grant.slots)
    for look in (table.workers, table.roster, table.reap):
        times = iter([read_at])
        table._scope.given = lambda times=times: next(times, world.time)  # type: ignore[misc]
        found = look()
        assert found == 0 if look == table.reap else "a" in str(found), look
    assert [slot.holder for slot in table.slots()] == ["a"]


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("lock", "table"),
    [
        ("LOCK TABLE optuna_deadline_report IN ACCESS EXCLUSIVE MODE", "optuna_deadline_report"),
        ("SELECT * FROM optuna_deadline_trial FOR UPDATE", "optuna_deadline_trial"),
    ],
)
def test_a_report_that_waits_for_a_lock_holds_back_no_renewal_for_long(
    table_only_url: str, lock: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker renews and tries again; its log names what it waits for."""
    empty(table_only_url)
    world = sql_world(table_only_url)
    world.join("a", cpus=1)
    grant = world.grant("a")
    monkeypatch.setattr(limits, "_LOCK", 0.2)
    with connect(table_only_url).engine.begin() as holder:
        holder.exec_driver_sql(lock)
        with pytest.raises(DATABASE_ERRORS) as waited:
            world.table().add_reports("a", grant, [NewReport(1, 0.5, 1.0)])
        assert world.table().renew("a", grant.slots).kept == frozenset(grant.slots)
    assert describe_database_error(waited.value).endswith(f"lock timeout on {table}")
    assert "pg_stat_activity" in (advice_for(waited.value) or "")
    world.table().add_reports("a", grant, [NewReport(1, 0.5, 1.0)])
    assert len(world.table().reports()) == 1


@pytest.mark.postgres
def test_a_worker_that_has_left_wins_no_election(table_only_url: str) -> None:
    empty(table_only_url)
    world = sql_world(table_only_url)
    for name in "ab":
        world.join(name, cpus=1, host=name)
    table = world.table()
    table.leave("a")
    assert table.elect_planner("a") is None and table.elect_leader("a") is None
    assert table.elect_planner("b") == 1 and table.elect_leader("b") == 1


def test_deleting_the_study_in_optuna_takes_its_rows_along(storage_url: str) -> None:
    study = optuna.create_study(storage=storage_url, study_name="study")
    database = open_table(study)
    terms = agreement.fix(database, study, "1h")

    def make(**law: object) -> AllocationTable:
        now = law["now"]
        return AllocationTable(database, "pool", terms.study_id, now=now)  # type: ignore[arg-type]

    world = AllocationWorld(make, time=terms.started)
    world.join("a", cpus=1)
    grant = world.grant("a")
    world.table().add_reports("a", grant, [NewReport(1, float("nan"), 1.0)])
    optuna.delete_study(study_name="study", storage=storage_url)
    assert world.table().trials() == [] and world.table().reports() == []
    assert "study" not in optuna.get_all_study_names(storage_url)


@pytest.mark.postgres
def test_a_worker_that_queued_to_register_has_the_time_of_its_turn(table_only_url: str) -> None:
    """Of its lease nothing is gone, and its events come late for no reader."""
    empty(table_only_url)
    sql_world(table_only_url).table()
    table = AllocationTable(connect(table_only_url), "pool", 1)
    table.make_pool()
    waits = (
        sa.select(sa.func.count())
        .select_from(sa.text("pg_locks"))
        .where(sa.text("locktype = 'advisory' AND NOT granted"))
    )
    queued = threading.Thread(target=lambda: table.register("a", "host", 1, [], 1))
    with table._tx(queue=REGISTRATION):
        queued.start()
        with autocommit(connect(table_only_url).engine) as connection:
            while not connection.execute(waits).scalar_one():
                time.sleep(0.01)
        turn = table.now()
    queued.join()
    [event] = table.events(kinds=["register"])
    [worker_] = table.workers()
    assert event.at >= turn and worker_.lease >= turn + table.ttl


def test_a_reader_that_comes_before_the_first_worker_finds_its_pool(storage_url: str) -> None:
    study = optuna.create_study(storage=storage_url, study_name="study")
    database = open_table(study)
    terms = agreement.fix(database, study, "1h")
    reader, watcher = HistoryReader(*table_of(study)), StudyWatcher(*table_of(study))
    assert reader.read().slots == () and watcher.view().slots_total == 0
    AllocationTable(database, "lab", terms.study_id).register("a", "host", 1, [], 4)
    assert len(reader.read().slots) == 4 and watcher.view().slots_total == 4


def test_a_planner_reads_no_worker_that_ended_long_ago(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = sql_world(sqlite_url)
    table = world.table()
    for number in range(20):
        table.register(f"before-{number}", "host", 1, [], 1)
        table.leave(f"before-{number}")
    world.join("a", cpus=2)
    rows: list[int] = []
    read = Transaction.rows

    def counted(tx: Transaction, text: str, **params: Any) -> list[Any]:
        found = read(tx, text, **params)
        rows.append(len(found))
        return found

    monkeypatch.setattr(Transaction, "rows", counted)
    assert [row.id for row in table.roster().workers] == ["a"] and sum(rows) == 1


def test_a_long_plan_takes_few_statements(storage_url: str) -> None:
    """At a database far away, a statement for each line would exceed the transaction's time."""
    study = optuna.create_study(storage=storage_url, study_name="study")
    database = open_table(study)
    table = AllocationTable(database, "pool", agreement.fix(database, study, "1h").study_id)
    table.register("a", "host", 1, [], 1)
    term = table.elect_planner("a")
    assert term is not None
    numbers = range(150)
    for number in numbers:
        table.open_trial("a", term, number, number)
    sent: list[str] = []
    with listening(lambda text, *_: sent.append(text)):
        table.write_plan(
            "a", term, [Assignment(n, "run", "a", 1 + n % 2, f"line {n}") for n in numbers]
        )
    assert len(sent) < 15
    lines = {row.number: (row.worker, row.slots, row.reason) for row in table.trials()}
    assert lines == {n: ("a", 1 + n % 2, f"line {n}") for n in numbers}


def test_long_names_of_policies_and_pools_are_kept(storage_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "of some length for a research group" / "and one more of its projects"
    folder.mkdir(parents=True)
    (folder / "policy.py").write_text(
        "from optuna_deadline.policies import Plan\ndef mine(snapshot):\n    return Plan()\n"
    )
    study = optuna.create_study(storage=storage_url, study_name="s" * 400)
    database = open_table(study)
    terms = agreement.fix(database, study, "1h", Given(f"{folder}/policy.py:mine"))
    assert terms.policy == f"{folder}/policy.py:mine"
    table = AllocationTable(database, study.study_name, terms.study_id)
    assert len(table.register("a", "host", 1, [], 2)) == 2


def test_a_name_that_no_database_keeps_is_refused_in_words(sqlite_url: str) -> None:
    study = optuna.create_study(storage=sqlite_url)
    database = open_table(study)
    with pytest.raises(DeadlineError, match=r"pool's name has 600 characters.*the limit is 512"):
        AllocationTable(database, "p" * 600, 1)
    with pytest.raises(DeadlineError, match="policy's name has 1,200 characters"):
        agreement.fix(database, study, "1h", Given("p" * 1190 + ".py:policy"))
