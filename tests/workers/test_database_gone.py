"""A worker that leaves while its database is away leaves with a reason."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import objectives
import optuna
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from tables import table_of, wait_until

from benchmarks.support.network import Proxy
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.cli.app import in_one_sentence
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.errors import DatabaseGone
from optuna_deadline.options import WorkerOptions
from optuna_deadline.worker import lease_clock as trusts
from optuna_deadline.worker import outage
from optuna_deadline.worker.lease_clock import LeaseClock
from optuna_deadline.worker.watchdog import Watchdog


class Clock:
    """The monotonic clock, in the test's hand."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of leases and outages."""
    clock = Clock()
    monkeypatch.setattr(trusts, "time", clock)
    monkeypatch.setattr(outage, "time", clock)
    return clock


@pytest.fixture
def trust(clock: Clock) -> LeaseClock:
    """The leases of a worker."""
    return LeaseClock(MemoryTable(now=lambda: clock.now), "me", Watchdog.__new__(Watchdog))


def test_a_worker_waits_thirty_seconds_for_its_database_once_its_work_is_over(
    clock: Clock, trust: LeaseClock
) -> None:
    over = clock.now + 100
    clock.now = over + 29
    assert trust.database_gone(over) is None, (
        "the database is away for long, and may still come back"
    )
    clock.now += 2
    assert "has not answered for 131 s, and" in str(trust.database_gone(over))
    assert trust.database_gone(float("inf")) is None, "there is work to do"
    trust.record_database_error(
        sa.exc.OperationalError("", {}, Exception("disk full\nDETAIL: none"))
    )
    assert "(disk full)" in str(trust.database_gone(over))
    trust.record_database_answer()
    assert trust.database_gone(over) is None, "a slow study is no database that is away"
    clock.now += 29
    assert trust.database_gone(over) is None
    clock.now += 2
    assert "for 31 s, and" in str(trust.database_gone(over)), "what it said before has passed"
    trust.record_progress()
    assert trust.database_gone(over) is None, "it works on one of many trials"
    trust.record_database_error(sa.exc.OperationalError("", {}, Exception("no such table")))
    clock.now += 31
    trust.record_progress()
    assert "no such table" in str(trust.database_gone(over)), "a part of a pass is no answer"


def test_a_server_that_refuses_every_second_connection_fills_no_log(
    clock: Clock, trust: LeaseClock, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = sa.exc.OperationalError("", {}, Exception("FATAL:  too many connections for role"))
    for _ in range(100):
        trust.record_database_error(refusal)
        clock.now += 1
        trust.record_database_answer()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4, "an outage and its end, and again after a minute"
    assert (
        "does not serve this worker (FATAL:  too many connections for role): run fewer" in lines[0]
    )
    trust.record_database_error(sa.exc.OperationalError("", {}, Exception("connection refused")))
    assert "does not answer (connection refused); training" in caplog.records[-1].getMessage()


def test_a_server_that_gives_neither_an_answer_nor_an_error_is_told_after_ten_seconds(
    clock: Clock, trust: LeaseClock, caplog: pytest.LogCaptureFixture
) -> None:
    trust.trusted_until = clock.now + 25
    for _ in range(40):
        clock.now += 1
        trust.note_silence()
    trust.record_database_error(sa.exc.OperationalError("", {}, Exception("timeout expired")))
    trust.record_database_answer()
    assert [record.getMessage() for record in caplog.records] == [
        "The database does not answer (silent for 10 s); training continues for at most 15 s.",
        "The database answers again after 40.0 s.",
    ]


def test_the_command_says_so_in_one_sentence_and_exits_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end, in_one_sentence():
        raise DatabaseGone("The database has not answered for 31 s.")
    assert end.value.code == 1
    assert capsys.readouterr().err == "optuna-deadline: The database has not answered for 31 s.\n"


@contextmanager
def locked(url: str, tmp_path: Path) -> Iterator[str]:
    """Another program holds SQLite's only lock."""
    connection = sqlite3.connect(tmp_path / "study.db", isolation_level=None, timeout=60)

    def lock() -> None:
        connection.execute("BEGIN EXCLUSIVE")

    yield url, lock  # type: ignore[misc]
    connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def stalled(url: str, tmp_path: Path) -> Iterator[str]:
    """A server that takes everything and answers nothing."""
    port = make_url(url).port
    assert port is not None
    with Proxy(port) as proxy:
        yield make_url(url).set(port=proxy.port).render_as_string(False), proxy.stall  # type: ignore[misc]
        proxy.reset()
        proxy.flow()


@contextmanager
def full(url: str, tmp_path: Path) -> Iterator[str]:
    """A disk without room: what is read is there, and nothing can be written."""
    real, patch = AllocationTable.renew, pytest.MonkeyPatch()

    def fail(*_: Any, **__: Any) -> None:
        raise sa.exc.OperationalError("", {}, Exception("could not extend file: disk full"))

    def fill() -> None:
        assert real
        writes = ("renew", "release", "add_reports", "add_checkpoint", "set_progress")
        for name in (*writes, "elect_planner"):
            patch.setattr(AllocationTable, name, fail)

    try:
        yield url, fill  # type: ignore[misc]
    finally:
        patch.undo()


@contextmanager
def deleted(url: str, tmp_path: Path) -> Iterator[str]:
    """The file is gone, and connections that were open before still have it."""

    def delete() -> None:
        for file in tmp_path.glob("study.db*"):
            file.unlink()

    yield url, delete  # type: ignore[misc]


Away = Callable[[str, Path], Any]
CASES = [
    pytest.param("sqlite", locked, "deadline", id="locked-deadline", marks=pytest.mark.nightly),
    pytest.param("sqlite", deleted, "deadline", id="deleted", marks=pytest.mark.nightly),
    pytest.param("sqlite", full, "asked", id="full-asked", marks=pytest.mark.nightly),
    pytest.param("postgres", stalled, "asked", id="stalled-asked", marks=pytest.mark.postgres),
]


@pytest.mark.slow
@pytest.mark.parametrize(("database", "away", "why"), CASES)
def test_a_worker_leaves_though_its_database_is_away(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    away: Away,
    why: str,
) -> None:
    monkeypatch.setattr(trusts, "DATABASE_GONE_SECONDS", 3.0)
    monkeypatch.setenv("RANK_LOG", str(tmp_path / "ranks"))
    with away(request.getfixturevalue(f"{database}_url"), tmp_path) as (url, go):
        study = optuna.create_study(study_name="study", storage=url, direction="maximize")
        terms = agree(study, "12s" if why == "deadline" else "10m")
        worker = ElasticWorker(
            study,
            objectives.slow,
            terms,
            WorkerOptions(cpus=1, checkpoints=tmp_path, dashboard=False),
            ttl=6,
            grace=3,
        )
        errors: list[BaseException] = []

        def work() -> None:
            try:
                worker.run()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        wait_until(lambda: len(table_of(study).reports()) > 2)
        go()
        if why == "asked":
            worker.leave("asked to leave")
        began = time.monotonic()
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
        assert time.monotonic() - began < 45
        [error] = errors
        assert isinstance(error, DatabaseGone), error
        assert "has not answered for" in str(error)
        if away is full:
            assert "disk full" in str(error)
