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
from optuna_deadline.allocation.database.engine import has_table
from optuna_deadline.cli import app
from optuna_deadline.cli.databases import make_storage
from optuna_deadline.worker.database_errors import advice_for

_LOOKING = (
    "status s", "top s", "status s --events", "status s --forecast", "load-best s",
    "set s --price 1", "steer 0 --pause --study s", "steer 0 --resume --study s",
    "steer 0 --resize 1 --study s", "drain node1", "status --pool", "stop s",
    "set s --deadline 2h", "worker json:loads --cpus 1 --study s",
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
            both.wait(timeout=300)

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
            thread.join(timeout=300)
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
@pytest.mark.parametrize(
    ("change", "query", "says"),
    [
        ("CONNECTION LIMIT 0", {}, "too many connections for role"),
        ("", {"sslmode": "require"}, "let sslmode, sslrootcert"),
        ("", {"sslmode": "verify-full", "sslrootcert": "none.pem"}, "let sslmode, sslrootcert"),
        ("NOLOGIN", {}, "check the user and the password"),
        ("SET statement_timeout = 1", {}, "a statement took longer"),
        ("SET default_transaction_read_only = on", {}, "it takes no writes"),
        ("RENAME TO {role}_away", {}, "check the user and the password"),
        ("", {"database": "od_none"}, "create the database with createdb"),
    ],
)
def test_a_server_that_answers_is_not_to_be_started(
    empty_postgres: str, change: str, query: dict[str, str], says: str
) -> None:
    role = f"od_role_{uuid.uuid4().hex[:8]}"
    server = sa.create_engine(empty_postgres, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'word'")
        connection.exec_driver_sql(f"GRANT CREATE ON SCHEMA public TO {role}")
        if change:
            connection.exec_driver_sql(f"ALTER ROLE {role} {change.format(role=role)}")
    try:
        for driver in ("psycopg", "psycopg2"):
            url = server.url.set(
                drivername=f"postgresql+{driver}",
                username=role,
                password="word",
                database=query.get("database", server.url.database),
            ).update_query_dict({k: v for k, v in query.items() if k != "database"})
            asked = CliRunner().invoke(
                app, ["create", "s", "--storage", url.render_as_string(False), "--deadline", "1h"]
            )
            assert asked.exit_code == 1, (asked.output, asked.exception)
            assert (
                "The database does not serve this command (" in asked.stderr
                and says in asked.stderr
            )
            assert "start it" not in asked.stderr and len(asked.stderr.splitlines()) == 1
    finally:
        role = f"{role}_away" if "RENAME" in change else role
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {role}")
            connection.exec_driver_sql(f"DROP ROLE {role}")
        server.dispose()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("FATAL:  sorry, too many clients already", "run fewer workers"),
        ("FATAL:  remaining connection slots are reserved for roles", "run fewer workers"),
        ("FATAL:  no more connections allowed (max_client_conn)", "run fewer workers"),
        ("FATAL:  query_wait_timeout", "run fewer workers"),
        ("FATAL:  terminating connection due to idle-session timeout", "a time-out"),
        ("FATAL:  terminating connection due to idle-in-transaction timeout", "this process"),
        ("ERROR:  canceling statement due to statement timeout", "a statement took longer"),
        ("ERROR:  cannot execute UPDATE in a read-only transaction", "it takes no writes"),
        ("ERROR:  canceling statement due to lock timeout", "another client keeps it locked"),
        ("ERROR:  canceling statement due to user request", "a statement took longer"),
        ("FATAL:  client_idle_timeout", "a time-out"),
        ("database or disk is full", "free space"),
        ('ERROR:  could not extend file "base/1/2": No space left on device', "free space"),
        ("FATAL:  SSL required", "let sslmode"),
        ('FATAL: no pg_hba.conf entry for host "h", user "u", no encryption', "let sslmode"),
        ("no pg_hba.conf entry, SSL encryption\nno pg_hba.conf entry, no encryption", "check the"),
        ("FATAL:  the database system is starting up", "wait for the server"),
        ('connection to server at "idle_timeout.ssl required", port 1 failed: refused', None),
        ("SSL SYSCALL error: EOF detected", None),
        ("server closed the connection unexpectedly", None),
        ("FATAL:  terminating connection due to administrator command", None),
    ],
)
def test_what_a_server_says_and_what_helps(words: str, advice: str | None) -> None:
    found = advice_for(sa.exc.OperationalError("", {}, Exception(words)))
    assert (found is None) if advice is None else (found or "").startswith(advice)


def test_tables_of_another_version_of_optuna_are_told_of(sqlite_url: str) -> None:
    optuna.create_study(study_name="s", storage=sqlite_url)
    engine = sa.create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'v99'")
    engine.dispose()
    asked = CliRunner().invoke(app, ["status", "s", "--storage", sqlite_url])
    assert asked.exit_code == 2, (asked.output, asked.exception)
    assert "no longer compatible with the table schema" in asked.stderr
