"""Connections that die while they are in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import RDBStorage

from optuna_deadline.allocation.database.engine import autocommit, storage_at
from optuna_deadline.allocation.database.opening import connect, open_table

_MADE: dict[str, Callable[[str], Any]] = {
    "by a command": storage_at,
    "by a URL": str,
    "by a user": lambda url: RDBStorage(
        url, {"connect_args": {"application_name": "mine", "connect_timeout": 77}, "echo": False}
    ),
}


def settings(engine: sa.Engine) -> dict[str, Any]:
    """What counts of a connection that an engine makes."""
    connection = engine.raw_connection()
    driver: Any = connection.driver_connection
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        [isolation] = cursor.fetchone() or ()
    given = driver.info.get_parameters() if hasattr(driver, "prepare_threshold") else {}
    given = given or driver.info.dsn_parameters
    found = {key: given.get(key) for key in ("connect_timeout", "tcp_user_timeout")}
    found |= {"name": given.get("application_name"), "isolation": isolation}
    found["prepares"] = getattr(driver, "prepare_threshold", None)
    connection.close()
    return found


@pytest.mark.postgres
@pytest.mark.parametrize("made", _MADE)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_every_connection_has_the_same_limits(postgres_url: str, driver: str, made: str) -> None:
    """Optuna's and the table's, however the storage is made; the user's own arguments stay."""
    url = sa.make_url(postgres_url).set(drivername=f"postgresql+{driver}")
    text = url.update_query_dict({"tcp_user_timeout": "9000"}).render_as_string(False)
    study = optuna.create_study(storage=_MADE[made](text))
    table = open_table(study)
    own = made == "by a user"
    for engine in (table.engine, study._storage._backend.engine):  # type: ignore[attr-defined]
        assert settings(engine) == {
            "connect_timeout": "77" if own else "5",
            "tcp_user_timeout": "9000",
            "name": "mine" if own else None,
            "isolation": "read committed",
            "prepares": None,
        }
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    again = study._storage._backend.engine  # type: ignore[attr-defined]
    assert open_table(study) is table
    assert study._storage._backend.engine is again  # type: ignore[attr-defined]


@pytest.mark.postgres
def test_a_pool_of_the_users_own_is_kept(postgres_url: str) -> None:
    mine = {"poolclass": sa.pool.NullPool, "isolation_level": "SERIALIZABLE"}
    study = optuna.create_study(storage=RDBStorage(postgres_url, mine))
    table = open_table(study)
    theirs = study._storage._backend.engine  # type: ignore[attr-defined]
    assert isinstance(table.engine.pool, sa.pool.NullPool) and isinstance(
        theirs.pool, sa.pool.NullPool
    )
    assert settings(theirs)["isolation"] == "serializable"
    assert settings(table.engine)["isolation"] == "read committed"


@pytest.mark.postgres
def test_optunas_storage_outlives_its_idle_connections(postgres_url: str) -> None:
    study = optuna.create_study(storage=postgres_url)
    open_table(study)
    killer = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    study.set_user_attr("a", 1)
    with killer.connect() as other:
        other.exec_driver_sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    study.set_user_attr("b", 2)
    assert study.user_attrs == {"a": 1, "b": 2}
    killer.dispose()


@pytest.mark.postgres
def test_a_session_that_ends_after_the_last_answer_costs_nothing(postgres_url: str) -> None:
    database = connect(postgres_url)
    killer = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    for _ in range(20):  # more than the pool has places
        with autocommit(database.engine) as connection:
            connection.execute(sa.select(1))
        with autocommit(database.engine) as connection:  # undoing asks the server now
            pid = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
            with killer.connect() as other:
                other.execute(sa.select(sa.func.pg_terminate_backend(pid, 5000)))
    with autocommit(database.engine) as connection:
        assert connection.execute(sa.select(1)).scalar_one() == 1
    killer.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("default", ["repeatable read", "serializable"])
def test_transactions_read_what_is_committed_whatever_the_servers_default_is(
    postgres_url: str, default: str
) -> None:
    url = sa.make_url(postgres_url)
    plain = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with plain.connect() as connection:
        connection.exec_driver_sql(
            f"ALTER DATABASE \"{url.database}\" SET default_transaction_isolation TO '{default}'"
        )
    plain.dispose()
    database = connect(postgres_url)
    for _ in range(2):
        with database.engine.begin() as connection:
            shown = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
            assert shown == "read committed"
        with autocommit(database.engine) as connection:  # returns to what the database has
            connection.execute(sa.select(1))


@pytest.mark.parametrize("made", ["by a command", "by a URL"])
def test_no_connection_goes_on_in_a_file_that_was_deleted_or_replaced(
    tmp_path: Path, made: str
) -> None:
    file, away = tmp_path / "study.db", tmp_path / "away"
    away.mkdir()

    def move(source: Path, target: Path) -> None:
        for part in source.glob("study.db*"):
            part.rename(target / part.name)

    study = optuna.create_study(storage=_MADE[made](f"sqlite:///{file}"))
    engines = open_table(study).engine, study._storage._backend.engine  # type: ignore[attr-defined]

    def count(engine: sa.Engine) -> int:
        with engine.connect() as connection:
            found: int = connection.execute(sa.text("SELECT count(*) FROM studies")).scalar_one()
            return found

    assert [count(engine) for engine in engines] == [1, 1]
    move(tmp_path, away)
    for engine in engines:
        for _ in range(2):
            with pytest.raises(sa.exc.OperationalError, match=r"study\.db was deleted"):
                count(engine)
            engine.dispose()  # the next one is a new connection
    assert not file.exists(), "no empty file takes its place"
    move(away, tmp_path)
    assert [count(engine) for engine in engines] == [1, 1]
    move(tmp_path, away)
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
    for name in ("a", "b"):
        optuna.create_study(storage=storage, study_name=name)
    assert [count(engine) for engine in engines] == [2, 2]
