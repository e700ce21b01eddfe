"""Two studies on the same slots, with real workers and real ranks."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from endings import end_within
from forked import WorkerProcess
from tables import wait_until

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.database.schema import leader, worker
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(r"\[postgres-3|\[3-postgres|killed_leader.*postgres"),
]
CPUS = 4
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(storage_url: str, start_worker: Start, tmp_path: Path) -> Start:
    """Starts a worker of a study by the study's name and weight."""
    usage = tmp_path / "usage"
    usage.mkdir()

    def start(name: str, weight: float, divider: str = "even") -> WorkerProcess:
        return start_worker(
            storage_url, "using", study=name, pool="lab", weight=weight, sharing=divider,
            cpus=CPUS, ttl=8, grace=2, USAGE=str(usage),
        )  # fmt: skip

    return start


def create(url: str, name: str, deadline: str = "10m") -> AllocationTable:
    """A study that ends when it is told to; returns its table in the pool."""
    study = optuna.create_study(study_name=name, storage=url, direction="maximize")
    agree(study, deadline, Given("fifo"))
    return AllocationTable(open_table(study), "lab", study._study_id)


def slot_seconds(table: AllocationTable, since: float, until: float) -> float:
    """What a study's segments had between two instants."""
    total = 0.0
    for row in table.segments():
        ended = until if row.ended is None else min(row.ended, until)
        total += row.slots * max(0.0, ended - max(row.granted, since))
    return total


def held(table: AllocationTable) -> list[int]:
    """How many slots are lent to the study, and how many it holds."""
    mine = table.study_id
    slots = table.slots()
    return [sum(s.lent_to == mine for s in slots), sum(s.study_id == mine for s in slots)]


def check_usage(folder: Path) -> None:
    """No two ranks used a device at once: each wrote down from when until when it did."""
    uses: dict[str, list[tuple[float, float]]] = {}
    for file in folder.iterdir():
        lines = [line[:-1].split() for line in file.read_text().splitlines() if line[-1:] == ";"]
        stamps = [float(line[1]) for line in lines]
        uses.setdefault(lines[0][0], []).append((min(stamps), max(stamps)))
    assert len(uses) == CPUS
    for spans in uses.values():
        spans.sort()
        for (_, ended), (began, _) in itertools.pairwise(spans):
            assert began >= ended


@pytest.mark.parametrize("weight", [1, 3])
def test_two_studies_share_by_their_weights_and_the_last_has_all(
    storage_url: str, start: Start, tmp_path: Path, weight: int
) -> None:
    one, two = create(storage_url, "one"), create(storage_url, "two")
    workers = [start("one", weight), start("two", 1)]
    share = CPUS * weight // (weight + 1)
    wait_until(lambda: held(one) == [share, share] and held(two) == [CPUS - share] * 2)
    since = one.now()
    wait_until(lambda: one.now() > since + 6)
    until = one.now()
    mine, theirs = slot_seconds(one, since, until), slot_seconds(two, since, until)
    assert mine / (mine + theirs) == pytest.approx(share / CPUS, abs=0.1)
    end_within(one, 2)
    assert workers[0].wait(60) == 0
    wait_until(lambda: held(two) == [CPUS, CPUS])
    end_within(two, 2)
    assert workers[1].wait(60) == 0
    check_usage(tmp_path / "usage")


def test_a_short_search_has_more_slots_by_its_purse_than_by_even_shares(
    storage_url: str, start: Start, tmp_path: Path
) -> None:
    one, two = create(storage_url, "one", "3m"), create(storage_url, "two", "12m")
    workers = [start(name, 1, "fair") for name in ("one", "two")]
    wait_until(lambda: held(one) == [3, 3] and held(two) == [1, 1])
    since = one.now()
    wait_until(lambda: one.now() > since + 6)
    until = one.now()
    mine, theirs = slot_seconds(one, since, until), slot_seconds(two, since, until)
    assert mine > 1.3 * 2 * (until - since) and theirs > 0.5 * 2 * (until - since) - 1
    end_within(one, 2)
    end_within(two, 2)
    assert [process.wait(60) for process in workers] == [0, 0]
    check_usage(tmp_path / "usage")


def test_a_killed_leader_is_replaced_and_the_shares_hold(
    storage_url: str, start: Start, tmp_path: Path
) -> None:
    one, two = create(storage_url, "one"), create(storage_url, "two")
    workers = [start("one", 1), start("two", 1)]
    wait_until(lambda: held(one) == [2, 2] and held(two) == [2, 2])
    engine = one.database.engine
    query = sa.select(worker.c.pid, leader.c.term).join(leader, leader.c.holder == worker.c.id)
    with engine.connect() as connection:
        pid, term = connection.execute(query).one()
    index = [process.pid for process in workers].index(pid)
    widow, other = [(one, two), (two, one)][index]
    os.kill(pid, signal.SIGKILL)

    def reaped() -> bool:
        terms = sa.select(leader.c.term).where(leader.c.holder.is_not(None))
        lost = [row for row in widow.segments() if row.outcome == "lost"]
        with engine.connect() as connection:
            return connection.execute(terms).scalar_one() > term and len(lost) >= 2

    wait_until(reaped)
    wait_until(lambda: held(other) == [CPUS, CPUS])  # nobody is there to use the widow's share
    workers.append(start(["one", "two"][index], 1))
    wait_until(lambda: held(widow) == [2, 2] and held(other) == [2, 2])
    workers.pop(index)
    end_within(one, 2)
    end_within(two, 2)
    assert [process.wait(90) for process in workers] == [0, 0]
    check_usage(tmp_path / "usage")
