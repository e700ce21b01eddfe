"""Statements as text: the words that are translated, transactions, and limits."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from optuna_deadline.allocation.database import limits, text
from optuna_deadline.allocation.database.access import Database, listening
from optuna_deadline.allocation.database.engine import autocommit, create
from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.database.schema import PREFIX, event
from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Scope
from optuna_deadline.errors import DeadlineError, UnsupportedStorage

SCOPE = Scope("pool", 7, lambda: 1000.0)
LIVE = Scope("pool", 7)


@pytest.fixture(params=["sqlite", "memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Each kind of database, with empty tables."""
    if request.param == "memory":
        yield MemoryDatabase()
        return
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    yield connect(url)


def pools(database: Database) -> list[str]:
    with database.each_alone(SCOPE) as tx:
        return [name for (name,) in tx.rows("SELECT name FROM @pool ORDER BY name")]


ADD = "INSERT INTO @pool (name, epoch, ttl, grace) VALUES (:name, :epoch, 30, 15)"


def test_each_word_means_the_same_everywhere(database: Database) -> None:
    with database.begin(SCOPE, "") as tx:
        for epoch, name in enumerate(("a", "b'%s:x", "c")):
            tx.run(ADD, name=name, epoch=epoch)
        names = "SELECT name FROM @pool WHERE"
        assert tx.rows(f"{names} epoch IN each(:ids) ORDER BY name", ids=listed([2, 0])) == [
            ("a",), ("c",)
        ]  # fmt: skip
        assert tx.value(f"{names} name IN names(:names)", names=listed(["b'%s:x"])) == "b'%s:x"
        assert tx.rows(f"{names} epoch IN each(:ids)", ids=listed([])) == []
        pairs = listed([(1, 30), (2, 31)])
        assert tx.rows(f"{names} (epoch, 30) IN pairs(:pairs)", pairs=pairs) == [("b'%s:x",)]
        rows = listed([(0, "x", 0.1), (1, None, 1e-5)])
        read = (
            "SELECT CAST(value ->> 0 AS INTEGER), value ->> 1, CAST(value ->> 2 AS DOUBLE "
            "PRECISION) FROM rows(:rows)"
        )
        assert tx.rows(read, rows=rows) == [(0, "x", 0.1), (1, None, 1e-5)]
        assert tx.value("SELECT NOW") == 1000.0
        assert tx.rows("SELECT :pool, CAST(:study AS INTEGER)") == [("pool", 7)]
        same = "SELECT CASE WHEN CAST(:one AS INTEGER) IS NOT DISTINCT FROM :two THEN 1 ELSE 0 END"
        assert [tx.value(same, one=a, two=b) for a, b in ((None, None), (1, None), (2, 2))] == [
            1, 0, 1
        ]  # fmt: skip
        assert tx.value(f"{names} epoch = 2 FOR NO KEY UPDATE") == "c"


def test_every_word_of_the_table_is_translated() -> None:
    """A word on the page that no database knows, or one that is not on the page, is a mistake."""
    page = set(re.findall(r"^``([^`]+)``", text.__doc__ or "", re.MULTILINE))
    assert len(page) == 9
    for word in page:
        sample = f"SELECT 1 FROM @trial WHERE x {word}" if word.startswith("IN") else word
        for postgresql in (True, False):
            written = text.translated(f"{sample} ", postgresql, given=False)
            same = word.startswith("IS") or (postgresql and word.startswith("FOR"))
            same |= word == ":name" and not postgresql
            assert (written.strip() != sample) or same, (word, postgresql)


def test_the_time_is_the_databases_and_moves_within_a_transaction(database: Database) -> None:
    if isinstance(database, MemoryDatabase):
        with pytest.raises(ValueError, match="needs the time"), database.begin(LIVE, ""):
            pass
        return
    with database.begin(LIVE, "") as tx:
        first = tx.value("SELECT NOW")
        time.sleep(0.01)
        assert tx.now <= first < tx.value("SELECT NOW") < time.time() + 1


def test_an_error_undoes_the_whole_transaction(database: Database) -> None:
    with pytest.raises(RuntimeError), database.begin(SCOPE, "") as tx:
        tx.run(ADD, name="a", epoch=0)
        tx.event("open")
        raise RuntimeError
    with pytest.raises(sa.exc.IntegrityError), database.begin(SCOPE, "") as tx:
        tx.run(ADD, name="a", epoch=0)
        tx.run(ADD, name="a", epoch=1)
    assert pools(database) == [] and database.written == 0
    with database.begin(SCOPE, "") as tx:
        tx.run(ADD, name="a", epoch=0)
        tx.event("open", number=3, detail_of="x")
    assert pools(database) == ["a"] and database.written == 1


def test_events_are_kept_in_their_order_with_their_detail(database: Database) -> None:
    with database.begin(SCOPE, "") as tx:
        for number in range(12):
            tx.event("open", number=number, fence=2**40, words="'\"%s é", nothing=None)
    with autocommit(database.engine) as connection:
        rows = connection.execute(sa.select(event).order_by(event.c.id)).all()
    assert [row.number for row in rows] == list(range(12))
    assert {(row.at, row.pool, row.study_id, row.slot, row.fence) for row in rows} == {
        (1000.0, "pool", 7, None, 2**40)
    }
    assert rows[0].detail == {"words": "'\"%s é", "nothing": None}


def test_threads_do_not_mix_their_transactions(database: Database) -> None:
    def add(start: int) -> None:
        for epoch in range(start, start + 20):
            with database.begin(SCOPE, "") as tx:
                tx.run(ADD, name=f"{epoch:03}", epoch=epoch)
                assert (
                    tx.value("SELECT epoch FROM @pool WHERE name = :me", me=f"{epoch:03}") == epoch
                )

    threads = [threading.Thread(target=add, args=(100 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pools(database)) == 80


def test_an_answer_in_memory_is_repeated_until_its_table_changes() -> None:
    database = MemoryDatabase()
    assert pools(database) == []
    with database.begin(SCOPE, "") as tx:
        tx.run(ADD, name="a", epoch=0)
    assert pools(database) == ["a"]
    with pytest.raises(RuntimeError), database.begin(SCOPE, "") as tx:
        tx.run("DELETE FROM @pool")
        assert tx.rows("SELECT name FROM @pool ORDER BY name") == []
        raise RuntimeError
    assert pools(database) == ["a"]


def test_a_cascade_changes_the_tables_that_follow() -> None:
    database = MemoryDatabase()
    count = "SELECT count(*) FROM @leader"
    with database.begin(SCOPE, "") as tx:
        tx.run(ADD, name="a", epoch=0)
        tx.run("INSERT INTO @leader (pool, term, expires) VALUES ('a', 0, 0)")
        assert tx.value(count) == 1
        tx.run("DELETE FROM @pool")
        assert tx.value(count) == 0


def test_a_number_beyond_64_bits_is_refused_in_words(tmp_path: Path) -> None:
    database = connect(f"sqlite:///{tmp_path / 'a.db'}")
    with pytest.raises(DeadlineError, match="64 bits"), database.begin(SCOPE, "") as tx:
        tx.run(ADD, name="a", epoch=2**70)
    assert pools(database) == []


def test_an_old_sqlite_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(UnsupportedStorage, match=r"needs SQLite 3\.38 or newer"):
        connect(f"sqlite:///{tmp_path / 'old.db'}")


@pytest.mark.postgres
def test_every_statement_has_limits_and_waits_for_nobody_for_long(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a lock holds back the renewal behind it."""
    monkeypatch.setattr(limits, "_LOCK", 0.2)
    database = connect(postgres_url)
    with database.each_alone(SCOPE) as tx:
        assert tx.value("SHOW lock_timeout") == "200ms"
        assert tx.value("SHOW statement_timeout") == "5s"
    with database.begin(SCOPE, "") as holder:
        holder.run(ADD, name="a", epoch=0)
        began = time.monotonic()
        with (
            pytest.raises(sa.exc.OperationalError, match="lock timeout"),
            database.each_alone(SCOPE) as tx,
        ):
            tx.run(ADD, name="a", epoch=1)
        assert time.monotonic() - began < 5
    with database.each_alone(SCOPE) as tx:
        assert tx.value("SELECT epoch FROM @pool") == 0


@pytest.mark.postgres
def test_isolation_is_read_committed_whatever_the_server_prefers(postgres_url: str) -> None:
    url = sa.make_url(postgres_url)
    with autocommit(connect(url).engine) as connection:
        connection.exec_driver_sql(
            f'ALTER DATABASE "{url.database}" SET default_transaction_isolation = serializable'
        )
    connect(url).engine.dispose()
    database = connect(url)
    asked = "SHOW transaction_isolation"
    with database.each_alone(SCOPE) as tx:
        assert tx.value(asked) == "read committed"
    with database.begin(SCOPE, "") as tx:
        assert tx.value(asked) == "read committed"
    with database.engine.begin() as connection:
        assert connection.exec_driver_sql(asked).scalar() == "read committed"


@pytest.mark.postgres
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_errors_have_one_name_whatever_the_driver(postgres_url: str, driver: str) -> None:
    """Workers tell an outage from a mistake by SQLAlchemy's names."""
    url = sa.make_url(postgres_url).set(drivername=f"postgresql+{driver}")
    database = connect(url)
    with pytest.raises(sa.exc.ProgrammingError), database.each_alone(SCOPE) as tx:
        tx.rows("SELECT 1 FROM @nothing")
    with pytest.raises(sa.exc.OperationalError) as gone, database.begin(SCOPE, "") as tx:
        own = tx.value("SELECT pg_backend_pid()")
        with database.each_alone(SCOPE) as other:
            other.rows("SELECT pg_terminate_backend(CAST(:own AS INTEGER))", own=own)
        tx.rows("SELECT 1")
    assert gone.value.connection_invalidated
    with pytest.raises(sa.exc.OperationalError), database.engine.begin() as connection:
        own = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with database.each_alone(SCOPE) as other:
            other.rows("SELECT pg_terminate_backend(CAST(:own AS INTEGER))", own=own)
        connection.exec_driver_sql("SELECT 1")
    assert pools(database) == []
    away = Database(create(url.set(port=1)))
    with pytest.raises(sa.exc.OperationalError, match="refused"):
        pools(away)


def test_a_listener_hears_each_statement(sqlite_url: str) -> None:
    database, heard = connect(sqlite_url), list[str]()
    with listening(lambda sql, *_: heard.append(sql)):
        pools(database)
    pools(database)
    assert [sql.split() for sql in heard] == [
        f"SELECT name FROM {PREFIX}pool ORDER BY name".split()
    ]
