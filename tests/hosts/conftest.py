"""A network of hosts with a PostgreSQL that they reach."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from sites import GRACE, TTL, Site

from benchmarks.support.network import Network
from benchmarks.support.postgres import EmbeddedPostgres
from optuna_deadline.allocation.database.opening import connect, disconnect
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if (why_not := Network.missing()) is not None:
        pytest.skip(why_not)
    with Network() as network:
        yield network


@pytest.fixture(scope="module")
def server(network: Network) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=("listen_addresses=*",)) as server:
        server.let_in(network.subnet)
        yield server


@pytest.fixture
def site(network: Network, server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Site]:
    with _site(network, server, tmp_path) as found:
        yield found


@pytest.fixture
def another_site(network: Network, server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Site]:
    """Of another study, in a folder of its own."""
    folder = tmp_path / "another"
    folder.mkdir()
    with _site(network, server, folder) as found:
        yield found


@contextmanager
def _site(network: Network, server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Site]:
    name = f"s{time.monotonic_ns()}"
    local = server.create_database(name)
    study = optuna.create_study(
        study_name="study", storage=local, direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=1),
    )  # fmt: skip
    agree(study, "300s", Given("fifo"))  # every trial to its end: it is there to be looked at
    engine = connect(local)
    table = AllocationTable(engine, "study", study._study_id, ttl=TTL, grace=GRACE)
    table.make_pool()
    url = sa.make_url(local).set(host=network.address).render_as_string(hide_password=False)
    before = list(network._hosts)
    found = Site(network, url, study, table, tmp_path)
    yield found
    for host in network._hosts[len(before) :]:
        host.die()
    for log in sorted(tmp_path.glob("*.log")):
        print(f"-- {log.name}\n{log.read_text()}")  # shown where the test failed
    disconnect(engine)
