"""A study on a real Ray cluster on this machine, with fake GPUs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'optuna-deadline[ray]'")

from optuna_deadline_ray import launch

from benchmarks.ray_cluster.run import cluster_of, run
from benchmarks.stretches import OBJECTIVE, Stretch, read_stretches, wrong
from benchmarks.stretches.objective import LOGS
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.options import WorkerOptions
from optuna_deadline.rank.rendezvous import ADDRESS_VARIABLE
from optuna_deadline.study import policy_choice
from optuna_deadline.study.terms import Given

pytestmark = pytest.mark.slow


def test_four_nodes_one_killed_and_one_added(tmp_path: Path) -> None:
    figures = run(tmp_path, seconds=75, kill_at=25, add_at=40, ttl=6, grace=2)
    print(figures)
    stretches = read_stretches(tmp_path / "logs")
    assert wrong(stretches) == []
    assert len({stretch.host for stretch in stretches}) == 5, "the added node trains too"
    assert figures.all_slots is not None and figures.trials_hit >= 1
    assert figures.first_step_there is not None and figures.slot_seconds_there > 0
    assert figures.checkpoint_ok and figures.best is not None and figures.overshoot < 5


def test_an_agent_that_dies_is_started_again_by_ray(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GPUs are its own again once the lease of the one before is over."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv(LOGS, str(tmp_path / "logs"))
    study = optuna.create_study(study_name="ray", storage=postgres_url, direction="maximize")
    terms = agree(study, "45s", Given(None, {"max_resource": 1000}))
    table = AllocationTable(open_table(study), "ray", terms.study_id, ttl=6, grace=2)
    table.make_pool()
    with cluster_of(1), ThreadPoolExecutor(1) as thread:
        place = {"checkpoints": tmp_path / "checkpoints", "publish": False}
        result = thread.submit(launch, study, OBJECTIVE, **place)
        _some_stretch(tmp_path, lambda found: found.trained_to > 10)
        [worker] = table.workers()
        os.kill(worker.pid, signal.SIGKILL)
        killed = time.monotonic()
        _some_stretch(tmp_path, lambda found: found.begun > killed)
        assert result.result(90).checkpoint_ok
    assert wrong(read_stretches(tmp_path / "logs")) == []
    assert len({event.worker for event in table.events(kinds=["register"])}) == 2


def test_a_gang_over_two_nodes_and_the_policys_own_factor(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv(LOGS, str(tmp_path / "logs"))
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")  # the nodes are processes of one machine
    study = optuna.create_study(study_name="ray", storage=postgres_url, direction="maximize")
    with cluster_of(2), ThreadPoolExecutor(1) as thread:
        result = thread.submit(
            launch, study, OBJECTIVE, "60s", policy="adaptive_halving:max_resource=1000",
            checkpoints=tmp_path / "checkpoints",
            worker=WorkerOptions(dashboard=False, multi_node=True),
        )  # fmt: skip
        first = _some_stretch(tmp_path, lambda found: found.trained_to > 5)
        terms = agree(study, None)
        own = policy_choice.own_factor(terms.policy, {})
        assert terms.parameters["reduction_factor"] == own != 4, "it is the policy's to choose"
        table = AllocationTable(open_table(study), "ray", terms.study_id)
        assert table.pin(first.number, 4)
        _some_stretch(tmp_path, lambda found: found.slots == 4 and found.trained_to > found.first)
        assert result.result(120).checkpoint_ok
    assert wrong(read_stretches(tmp_path / "logs")) == []


def _some_stretch(folder: Path, is_it: Callable[[Stretch], bool]) -> Stretch:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for stretch in read_stretches(folder / "logs"):
            if is_it(stretch):
                return stretch
        time.sleep(0.2)
    raise AssertionError("it did not happen")


def test_a_cluster_without_gpus(tmp_path: Path) -> None:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path / 'study.db'}")
    with cluster_of(1, gpus=0), pytest.raises(DeadlineError, match="has no GPU"):
        launch(study, "train.py:objective", deadline="1m")
