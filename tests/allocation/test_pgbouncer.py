"""Through pgbouncer in transaction mode everything works but the notices."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from bouncer import Bouncer
from stores import empty, sql_world

import optuna_deadline
from optuna_deadline.allocation.engine import connect, disconnect
from optuna_deadline.testing.allocation import AllocationStoreTestCase
from optuna_deadline.testing.postgres import PostgresServer
from optuna_deadline.testing.worlds import AllocationWorld

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.skipif(
        Bouncer.binary() is None,
        reason="pgbouncer is not installed (Debian: apt install pgbouncer)",
    ),
]


@pytest.fixture(scope="module")
def bouncer(postgres: PostgresServer) -> Iterator[Bouncer]:
    with Bouncer(postgres) as pooler:
        yield pooler


@pytest.fixture(scope="module", params=["psycopg2", "psycopg"])
def pooled_url(
    request: pytest.FixtureRequest, postgres: PostgresServer, bouncer: Bouncer
) -> Iterator[str]:
    name = f"od_pooled_{uuid.uuid4().hex[:8]}"
    postgres.create_database(name)
    url = bouncer.url(name, request.param)
    yield url
    disconnect(connect(url))
    postgres.drop_database(name)


class TestPooled(AllocationStoreTestCase):
    @pytest.fixture
    def world(self, pooled_url: str) -> AllocationWorld:
        empty(pooled_url)
        return sql_world(pooled_url)


def test_a_worker_behind_the_pooler(pooled_url: str, tmp_path: Path) -> None:
    empty(pooled_url)
    study = optuna.create_study(
        study_name="pooled", storage=pooled_url.replace("+psycopg:", "+psycopg2:")
    )

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(5):
            trial.report(x, step)
        return x

    result = optuna_deadline.run(
        study, objective, cpus=2, deadline="8s", checkpoints=tmp_path, max_resource=5
    )
    assert result.settled
    trials = study.get_trials()
    assert trials and all(trial.state.is_finished() for trial in trials)
