"""A study on a real SLURM of three nodes on this machine: its jobs, signals and time limits."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
import pytest
from endings import end_within

from benchmarks.slurm_cluster.cluster import SlurmCluster, missing
from benchmarks.stretches import OBJECTIVE, Stretch, following, read_stretches, wrong
from benchmarks.stretches.objective import LOGS
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given
from optuna_deadline.worker.devices import free_port

pytestmark = [pytest.mark.slow, pytest.mark.postgres]
PROGRAM = [sys.executable, "-c", "from optuna_deadline.cli import app; app()"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if (why_not := missing()) is not None:
        pytest.skip(why_not)
    with SlurmCluster() as cluster:
        yield cluster


@dataclass
class Site:
    """A study, and the cluster that trains it."""

    cluster: SlurmCluster
    url: str
    folder: Path
    table: AllocationTable

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The real command."""
        logs = {LOGS: str(self.folder / "stretches"), "COLUMNS": "400"}
        return subprocess.run(
            [*PROGRAM, words[0], "--storage", self.url, *words[1:]],
            env={**os.environ, **self.cluster.environment, **logs},
            cwd=self.folder, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def submit(self, *words: str) -> str:
        """A job's number."""
        answer = self.run(
            "slurm", OBJECTIVE, "--study", "slurm", "--logs", "logs", "--checkpoints", "saved",
            "--no-dashboard", *words,
        )  # fmt: skip
        found = re.search(r"Submitted job (\d+): (\S+),", answer.stdout)
        assert found, (answer.stdout, answer.stderr, answer.returncode)
        assert Path(found[2]).read_text().startswith("#!/bin/bash")
        return found[1]

    def stretches(self) -> list[Stretch]:
        return read_stretches(self.folder / "stretches")

    def training(self) -> list[Stretch]:
        """What is trained just now."""
        now = time.monotonic()
        return [stretch for stretch in self.stretches() if now - stretch.last < 1.0]

    def end(self, seconds: float) -> None:
        """Bring the deadline forward."""
        end_within(self.table, seconds)

    def output(self) -> str:
        """All that jobs wrote."""
        return "\n".join(log.read_text() for log in sorted((self.folder / "logs").glob("*.out")))


@pytest.fixture
def site(
    cluster: SlurmCluster, postgres_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Site]:
    """Leases are short, but where a test says otherwise."""
    study = optuna.create_study(
        study_name="slurm", storage=postgres_url, direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=1),
    )  # fmt: skip
    terms = agree(study, "10m", Given("fifo"))
    ttl = getattr(request, "param", 6)
    table = AllocationTable(open_table(study), "slurm", terms.study_id, ttl=ttl, grace=2)
    table.make_pool()
    (tmp_path / "stretches").mkdir()
    found = Site(cluster, postgres_url, tmp_path, table)
    yield found
    print(found.output())  # shown where the test failed
    cluster.ask("scancel", "--user=root")
    until(lambda: not cluster.ask("squeue", "--noheader"))


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for what happens elsewhere."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)


def assert_all_left_in_order(site: Site) -> None:
    """Nobody was killed, and nobody's lease ran out."""
    outcomes = {row.outcome for row in site.table.segments()}
    assert "shutdown" in outcomes and outcomes <= {None, "shutdown", "pause"}


def assert_no_step_lost(left: list[Stretch], stretches: list[Stretch]) -> None:
    """Those that were told to leave saved their last step, and went on behind it."""
    for stretch in left:
        after = following(stretch, stretches)
        assert after is None or after.first == stretch.trained_to + 1, (stretch, after)


def test_a_job_of_three_nodes_ends_with_its_study(site: Site) -> None:
    job = site.submit("--nodes", "3", "--gpus-per-node", "2", "--", '--comment=it\'s "three"')
    hosts = {f"{name}-{job}" for name in site.cluster.names}
    until(lambda: {stretch.host for stretch in site.training()} == hosts)
    assert sum(slot.holder is not None for slot in site.table.slots()) == 6
    devices = {slot.device for slot in site.table.slots()}
    assert devices == {"gpu:0", "gpu:1"}, "as CUDA_VISIBLE_DEVICES has them"
    assert site.cluster.field(job, "Comment").startswith("it's"), "further options are handed on"
    site.end(6)
    until(lambda: site.cluster.state(job) == "COMPLETED")
    assert site.cluster.field(job, "Restarts") == "0"
    assert wrong(site.stretches()) == [] and site.table.workers() == []
    assert site.table.orders("").settled
    refused = site.run("slurm", OBJECTIVE, "--study", "slurm", "--gpus-per-node", "1")
    assert refused.returncode == 2 and "has ended" in refused.stderr


def test_a_job_whose_time_is_over_has_left_before_and_comes_back(site: Site) -> None:
    job = site.submit("--gpus-per-node", "2", "--time", "1")
    until(site.training)
    ends = site.cluster.seconds_left(job)
    over = time.monotonic() + ends
    until(lambda: site.cluster.field(job, "Restarts") == "1", ends + 30.0)
    first = site.stretches()
    assert over - 30 < max(stretch.last for stretch in first) < over
    assert site.table.workers() == [], "its slots are free before the end of its time"
    outcomes = {row.outcome for row in site.table.segments()}
    assert outcomes == {"shutdown"}, "it left in order"
    until(site.training, 90)
    assert_no_step_lost(first, site.stretches())
    assert wrong(site.stretches()) == []
    site.end(5)
    until(lambda: site.cluster.state(job) == "COMPLETED")
    assert site.cluster.field(job, "Restarts") == "1", "after the study's end it does not"


def test_an_array_is_a_pool_whose_tasks_come_and_go(site: Site) -> None:
    job = site.submit("--gpus-per-node", "1", "--array", "4")
    until(lambda: len({stretch.host for stretch in site.training()}) == 4)
    nodes = {row.host.partition("-")[0] for row in site.table.workers()}
    assert len(nodes) < 4, "two of them have GPUs of one node"
    state = site.cluster.ask("scontrol", "--oneliner", "show", "job", f"{job}_1")
    [number] = re.findall(r"^JobId=(\d+)", state)
    [gone] = [stretch for stretch in site.training() if stretch.host.endswith(f"-{number}")]
    site.cluster.ask("scancel", f"{job}_1")
    until(lambda: len(site.table.workers()) == 3)
    [left] = [s for s in site.stretches() if (s.number, s.fence) == (gone.number, gone.fence)]
    assert_all_left_in_order(site)
    site.cluster.ask("scancel", f"{job}_0")  # somebody's slot becomes free for what was saved
    until(lambda: len(site.table.workers()) == 2)
    until(lambda: len({stretch.host for stretch in site.training()}) == 2)
    site.submit("--gpus-per-node", "1", "--array", "2")
    until(lambda: following(left, site.stretches()))
    assert {site.cluster.state(f"{job}_{task}") for task in (0, 1)} == {"CANCELLED"}
    assert_no_step_lost([left], site.stretches())
    assert wrong(site.stretches()) == []


def test_a_preempted_job_saves_leaves_and_comes_back(site: Site) -> None:
    """That task of the array alone: in an array a job's number may be that of the whole."""
    job = site.submit(
        "--gpus-per-node", "2", "--array", "2", "--partition", "main", "--", "--exclusive"
    )
    until(lambda: len({stretch.host for stretch in site.training()}) == 2)
    before = {(stretch.number, stretch.fence) for stretch in site.training()}
    urgent = site.cluster.ask(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--time=5",
        "--output=/dev/null", "--wrap=sleep 15",
    )  # fmt: skip
    until(lambda: site.cluster.state(urgent) == "RUNNING")
    assert len(site.table.workers()) == 1
    assert_all_left_in_order(site)
    until(lambda: len({stretch.host for stretch in site.training()}) == 2, 90)
    restarts = [site.cluster.field(f"{job}_{task}", "Restarts") for task in (0, 1)]
    assert sorted(restarts) == ["0", "1"]
    stretches = site.stretches()
    assert_no_step_lost([s for s in stretches if (s.number, s.fence) in before], stretches)
    assert wrong(stretches) == []


@pytest.mark.parametrize("task", [0, 1])
def test_usr1_is_a_notice_for_one_task_of_an_array(site: Site, task: int) -> None:
    job = site.submit("--gpus-per-node", "2", "--array", "2", "--time", "10")
    until(lambda: len({stretch.host for stretch in site.training()}) == 2)
    before = {(stretch.number, stretch.fence) for stretch in site.training()}
    site.cluster.ask("scancel", "--signal=USR1", "--batch", f"{job}_{task}")
    until(lambda: site.cluster.field(f"{job}_{task}", "Restarts") == "1")
    assert site.cluster.field(f"{job}_{1 - task}", "Restarts") == "0"
    assert len(site.table.workers()) == 1, "the other one trains on"
    until(lambda: len({stretch.host for stretch in site.training()}) == 2)
    stretches = site.stretches()
    assert_no_step_lost([s for s in stretches if (s.number, s.fence) in before], stretches)
    assert wrong(stretches) == []


@pytest.mark.parametrize("site", [20], indirect=True)
def test_slots_of_a_job_that_was_killed_are_waited_for(site: Site) -> None:
    """The next job has the same GPUs, and nobody else is there to take them from the dead one."""
    words = ["--gpus-per-node", "2", "--", "--nodelist=n1"]
    killed = site.submit(*words)
    until(lambda: any(stretch.trained_to > 8 for stretch in site.training()))
    job = site.submit(*words)
    [worker] = site.table.workers()
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: site.cluster.state(killed) == "FAILED")
    until(lambda: any(stretch.host == f"n1-{job}" for stretch in site.training()))
    assert "Waiting 90 s at most: gpu:" in site.output()
    assert "lost" in {row.outcome for row in site.table.segments()}
    assert wrong(site.stretches()) == [], "no more than the steps since the checkpoint"


def test_a_job_that_starts_after_the_end_ends_the_study_and_itself(site: Site) -> None:
    job = site.submit("--gpus-per-node", "1", "--", "--hold")
    site.end(0.1)
    site.cluster.ask("scontrol", "release", job)
    until(lambda: site.cluster.state(job) == "COMPLETED")
    assert site.table.orders("").settled and site.stretches() == []
    assert site.cluster.field(job, "Restarts") == "0"


def test_nothing_of_the_cluster_is_left(cluster: SlurmCluster) -> None:
    with SlurmCluster(nodes=1) as another:
        another.ask("sbatch", "--output=/dev/null", "--wrap=sleep 1000")
        until(lambda: another.ask("squeue", "-h", "-o", "%T") == "RUNNING")
    assert another._processes() == set() and not another.folder.exists()


def test_a_port_that_was_taken_meanwhile_is_another_one_the_next_time(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    with socket.create_server(("0.0.0.0", 0)) as taken:

        def free() -> int:
            ports.append(free_port() if ports else taken.getsockname()[1])
            return ports[-1]

        monkeypatch.setattr("benchmarks.slurm_cluster.cluster.free_port", free)
        with SlurmCluster(nodes=1) as another:
            assert another.ask("sinfo", "-h", "-o", "%T").split() == ["idle"]
    assert len(ports) == 4
