"""Studies on each storage, a clock that tests advance, and a count of SQL statements."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from clocks import FakeClock

from optuna_deadline.allocation.database.access import listening
from optuna_deadline.allocation.database.opening import open_table

POSTGRES = pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", POSTGRES])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'study.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def empty_url(storage_url: str) -> Iterator[str]:
    """A database without any table, not even Optuna's."""
    if storage_url.startswith("sqlite"):
        yield storage_url
        return
    name = f"empty_{uuid.uuid4().hex[:12]}"
    admin = sa.create_engine(storage_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0")
    yield admin.url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Any storage that plain use knows, None for the one in memory."""
    if request.param == "memory":
        return None
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'study.db'}"
    return str(request.getfixturevalue("postgres_url"))


Statements = list[str]
Counting = Callable[[optuna.Study], contextlib.AbstractContextManager[Statements]]


@pytest.fixture
def counting() -> Counting:
    """The statements that a block sends, on our engine and on Optuna's."""

    @contextlib.contextmanager
    def count(study: optuna.Study) -> Iterator[Statements]:
        engines = [open_table(study).engine]
        if (backend := getattr(study._storage, "_backend", None)) is not None:
            engines.append(backend.engine)
        sent: Statements = []

        def listen(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            sent.append(statement)

        for engine in engines:
            sa.event.listen(engine, "before_cursor_execute", listen)
        try:
            with listening(lambda statement, *_: sent.append(statement)):
                yield sent
        finally:
            for engine in engines:
                sa.event.remove(engine, "before_cursor_execute", listen)

    return count
