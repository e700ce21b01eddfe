"""Through pgbouncer in transaction mode everything works but the notices."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from allocation.suite import AllocationStoreTestCase
from allocation.suite.world import AllocationWorld
from bouncer import Bouncer
from stores import empty, sql_world

import optuna_deadline
from benchmarks.support.postgres import PostgresServer
from optuna_deadline.allocation.database.opening import connect, disconnect

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.skipif(
        Bouncer.binary() is None,
        reason="pgbouncer is not installed (Debian: apt install pgbouncer)",
    ),
    pytest.mark.nightly_but(r"a_worker_behind"),
]


@pytest.fixture(scope="module")
def bouncer(postgres: PostgresServer) -> Iterator[Bouncer]:
    with Bouncer(postgres) as pooler:
        yield pooler


@pytest.fixture(scope="module")
def pooled(postgres: PostgresServer, bouncer: Bouncer) -> Iterator[Callable[[str], str]]:
    """The URL of a database behind the pooler, by driver."""
    name = f"od_pooled_{uuid.uuid4().hex[:8]}"
    postgres.create_database(name)
    yield functools.partial(bouncer.url, name)
    for driver in ("psycopg", "psycopg2"):
        disconnect(connect(bouncer.url(name, driver)))
    postgres.drop_database(name)


class TestPooled(AllocationStoreTestCase):
    """By psycopg, which prepares statements by itself: another session would not have them."""

    @pytest.fixture
    def world(self, pooled: Callable[[str], str]) -> AllocationWorld:
        url = pooled("psycopg")
        empty(url)
        return sql_world(url)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_worker_behind_the_pooler(
    pooled: Callable[[str], str], tmp_path: Path, driver: str
) -> None:
    empty(pooled(driver))
    study = optuna.create_study(study_name=f"pooled-{driver}", storage=pooled(driver))

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(5):
            trial.report(x, step)
        return x

    result = optuna_deadline.run(
        study,
        objective,
        cpus=2,
        deadline="8s",
        checkpoints=tmp_path,
        policy="adaptive_halving:max_resource=5",
    )
    assert result.settled
    trials = study.get_trials()
    assert len(trials) > 2 and {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
