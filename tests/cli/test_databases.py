"""What commands make of databases, and what they do not."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages._rdb import models
from typer.testing import CliRunner

from benchmarks.support.postgres import PostgresServer
from optuna_deadline.allocation.sql.database.engine import has_table
from optuna_deadline.cli import app
from optuna_deadline.cli.databases import make_storage

_LOOKING = (
    "status s", "top s", "events s", "forecast s", "load-best s", "price s 1", "pause 0 --study s",
    "resume 0 --study s", "give 0 --gpus 1 --study s", "drain node1", "pool show", "stop s",
    "extend s --deadline 2h", "worker json:loads --cpus 1 --study s",
)  # fmt: skip


@pytest.fixture
def empty_postgres(postgres: PostgresServer) -> Iterator[str]:
    """A database without any table."""
    name = f"od_empty_{uuid.uuid4().hex[:8]}"
    url = postgres.create_database(name)
    yield url
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database without any table, on each of the two systems; on SQLite a file of no bytes."""
    url: str = request.getfixturevalue(
        "sqlite_url" if request.param == "sqlite" else "empty_postgres"
    )
    return url


def test_a_look_at_a_database_without_studies_makes_nothing_there(empty_url: str) -> None:
    if empty_url.startswith("sqlite"):
        open(empty_url.removeprefix("sqlite:///"), "w").close()
    for words in _LOOKING:
        asked = CliRunner().invoke(app, [*words.split(), "--storage", empty_url])
        assert asked.exit_code == 2, (words, asked.output, asked.exception)
        assert "has no study yet: check --storage" in asked.stderr, words
    findings = CliRunner().invoke(app, ["doctor", "--storage", empty_url])
    assert "note  database: " in findings.stdout and "has no study yet" in findings.stdout
    engine = sa.create_engine(empty_url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


def test_processes_that_make_one_empty_database_at_once_all_have_it(empty_url: str) -> None:
    """Each has seen that there is no table before the first of them makes one."""
    both = threading.Barrier(2)
    seen = threading.local()

    def wait(*_: object, **__: object) -> None:
        if not getattr(seen, "once", False):
            seen.once = True
            both.wait(timeout=60)

    made: list[str] = []

    def make() -> None:
        storage = make_storage(empty_url)
        study = optuna.create_study(study_name="s", storage=storage, load_if_exists=True)
        made.append(study.study_name)

    # First of all: the next listener makes types, which one transaction lets no other do.
    sa.event.listen(models.BaseModel.metadata, "before_create", wait, insert=True)
    try:
        threads = [threading.Thread(target=make) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    finally:
        sa.event.remove(models.BaseModel.metadata, "before_create", wait)
    assert made == ["s", "s"]
    assert has_table(empty_url, "alembic_version")


@pytest.mark.postgres
def test_an_account_that_may_make_no_tables_is_told_of_it(empty_postgres: str) -> None:
    role = f"od_reader_{uuid.uuid4().hex[:8]}"
    server = sa.create_engine(empty_postgres, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'word'")
    theirs = server.url.set(username=role, password="word")
    url = theirs.render_as_string(hide_password=False)
    asked = CliRunner().invoke(app, ["create", "s", "--storage", url, "--deadline", "1h"])
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP ROLE {role}")
    server.dispose()
    assert asked.exit_code == 1, (asked.output, asked.exception)
    assert "The database refuses (permission denied for schema public): let" in asked.stderr


@pytest.mark.postgres
def test_a_database_that_only_reads_is_told_of_it(empty_postgres: str) -> None:
    url = sa.make_url(empty_postgres).update_query_dict(
        {"options": "-c default_transaction_read_only=on"}
    )
    text = url.render_as_string(hide_password=False)
    asked = CliRunner().invoke(app, ["create", "s", "--storage", text, "--deadline", "1h"])
    assert asked.exit_code == 1, (asked.output, asked.exception)
    assert "The database refuses (cannot execute CREATE TYPE in a read-only" in asked.stderr


def test_tables_of_another_version_of_optuna_are_told_of(sqlite_url: str) -> None:
    optuna.create_study(study_name="s", storage=sqlite_url)
    engine = sa.create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'v99'")
    engine.dispose()
    asked = CliRunner().invoke(app, ["status", "s", "--storage", sqlite_url])
    assert asked.exit_code == 2, (asked.output, asked.exception)
    assert "no longer compatible with the table schema" in asked.stderr
