"""LISTEN makes things quick, and nothing depends on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sql_world import World

from benchmarks.support.postgres import PostgresServer
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.notify import NotificationListener, channel
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.records import Assignment, NewReport

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["psycopg2", "psycopg"])
def world(request: pytest.FixtureRequest, postgres_url: str) -> World:
    """A table on PostgreSQL, through each driver."""
    pytest.importorskip(request.param)
    url = postgres_url.replace("psycopg2", request.param)
    request.getfixturevalue("storage")["url"] = url
    made: World = request.getfixturevalue("make_world")()
    return made


@pytest.fixture
def storage() -> dict[str, str]:
    """Where the test's world is."""
    return {}


@pytest.fixture
def storage_url(storage: dict[str, str]) -> str:
    """As :func:`world` has chosen."""
    return storage["url"]


class Heard:
    """Counts wakes."""

    def __init__(self) -> None:
        self.count = 0
        self.changed = threading.Condition()

    def __call__(self) -> None:
        """One more."""
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def wait(self, count: int, seconds: float = 10) -> bool:
        """Whether so many wakes came in time."""
        with self.changed:
            return self.changed.wait_for(lambda: self.count >= count, seconds)


@pytest.fixture
def listening(world: World) -> Iterator[Heard]:
    """A listener on the world's pool, connected."""
    heard = Heard()
    listener = NotificationListener(world.engine, "pool", "a", heard)
    listener.start()
    assert listener.connected.wait(10) and heard.wait(1)
    yield heard
    listener.end()
    assert not listener.is_alive()


def test_a_plan_a_release_and_the_end_are_heard(world: World, listening: Heard) -> None:
    world.join("a")
    grant = world.grant("a")  # one plan
    assert listening.wait(2)
    world.table().release("a", grant, "paused", ended="pause")
    assert listening.wait(3)
    world.table().settle("planner", 1)
    assert listening.wait(4)


def test_renewals_reports_and_other_pools_are_not_heard(
    world: World, listening: Heard, make_world: Callable[..., World]
) -> None:
    world.join("a")
    grant = world.grant("a")
    assert listening.wait(2)
    world.table().renew("a", grant.slots)
    world.table().add_reports("a", grant, [NewReport(1, 0.5, 1.0)])
    other = make_world("another")
    other.join("b", host="there", pool="pool 2")
    term = other.table("pool 2").elect_planner("b")
    assert term is not None
    number = other.study.ask().number
    other.table("pool 2").open_trial("b", term, number, number)
    other.table("pool 2").write_plan("b", term, [Assignment(number, "run", "b", 1, "test")])
    world.plan("a")  # whatever came before it has come by now
    assert listening.wait(3)
    assert listening.count == 3


def test_a_cut_connection_is_replaced_and_what_was_missed_is_looked_for(
    world: World, listening: Heard
) -> None:
    cut = sa.text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    )
    with world.engine.begin() as connection:
        connection.execute(cut)
    assert listening.wait(2)  # connected again, hence a look
    world.join("a")
    world.plan("a")
    assert listening.wait(3)


def test_without_a_database_it_keeps_trying_and_ends_when_told(postgres: PostgresServer) -> None:
    database = Database(sa.create_engine("postgresql+psycopg2://127.0.0.1:1/none"))
    listener = NotificationListener(database, "pool", "a", lambda: None)
    listener.start()
    time.sleep(0.5)
    assert listener.is_alive() and not listener.connected.is_set()
    listener.end()
    assert not listener.is_alive()


def test_sqlite_is_polled(sqlite_url: str) -> None:
    assert not NotificationListener.works_on(connect(sqlite_url))


def test_every_pool_and_every_worker_has_a_channel_of_its_own() -> None:
    pairs = [
        ("my pool", None),
        ("my pool", "a"),
        ("my pool", "b"),
        ("my", None),
        ("it's; my", "a"),
    ]
    names = [channel(pool, worker) for pool, worker in pairs]
    assert len(set(names)) == len(pairs)
    assert all(name.isidentifier() and name.islower() and len(name) < 64 for name in names)


def test_a_plan_for_others_is_passed_over(world: World, listening: Heard) -> None:
    world.join("a")
    world.join("b")
    world.plan("b")
    number = world.plan("a")
    assert listening.wait(2)
    assert listening.count == 2
    slots = [slot.id for slot in world.table().slots() if "a" in slot.offered_by]
    grant = world.table().acquire("a", number, slots[:1])
    assert grant is not None
    world.plan("b", number=number)  # "a" is to give it up
    assert listening.wait(3)


def test_a_plan_that_concerns_no_worker_wakes_none(world: World, listening: Heard) -> None:
    world.join("a")
    number = world.plan("a")
    assert listening.wait(2)
    pause = Assignment(number + 1, "pause", None, 0, "waits")
    world.table().open_trial("planner", 1, number + 1, 999)
    world.table().write_plan("planner", 1, [pause])
    world.plan("a")  # whatever came before it has come by now
    assert listening.wait(3)
    assert listening.count == 3
