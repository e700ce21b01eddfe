"""SQL tables whose time the test drives, and readable failures from the suite."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import optuna
import pytest
from sql_world import World

from benchmarks.support.postgres import PostgresServer
from optuna_deadline.allocation.database.opening import connect, disconnect, open_table
from optuna_deadline.study import agreement

pytest.register_assert_rewrite("allocation.suite")


@pytest.fixture(scope="session")
def table_only_url(postgres: PostgresServer) -> Iterator[str]:
    """A PostgreSQL database for the table alone, which its tests empty or share by pools."""
    name = f"od_table_{uuid.uuid4().hex[:8]}"
    url = postgres.create_database(name)
    yield url
    disconnect(connect(url))
    postgres.drop_database(name)


@pytest.fixture
def make_world(storage_url: str) -> Callable[..., World]:
    """Worlds on one database."""

    def make(name: str = "study") -> World:
        study = optuna.create_study(storage=storage_url, study_name=name, load_if_exists=True)
        engine = open_table(study)
        terms = agreement.fix(engine, study, "1h")
        return World(study, engine, terms.study_id, terms.deadline, terms.started)

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """One world."""
    return make_world()
