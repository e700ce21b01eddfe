"""Programs of ranks in sessions of their own end with their trial, or with the worker."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from tables import wait_until

import optuna_deadline
from optuna_deadline.rank.processes import RANK, WORKER
from optuna_deadline.worker.watchdog import Watchdog, processes_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="There is no /proc.")


@pytest.fixture
def me() -> str:
    """A worker that no other test has."""
    return str(uuid.uuid4())


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts programs of ranks, and leaves none behind."""
    started: list[subprocess.Popen[bytes]] = []

    def start(worker: str, rank: int, *command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, WORKER: worker, RANK: str(rank)}
        made = subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=subprocess.PIPE
        )
        started.append(made)
        return made

    yield start
    for process in started:
        process.kill()
        process.wait()


SLEEP = "sleep", "97531"
DEAF = "import signal, time; signal.signal(15, 1); print('deaf', flush=True); time.sleep(97531)"
FIRST, SECOND = 4_300_001, 4_300_002  # of no process


def test_they_end_after_their_rank_and_others_with_the_worker(
    me: str, start: Callable[..., subprocess.Popen[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = start(me, FIRST, *SLEEP), start(me, SECOND, *SLEEP)
    foreign = start(f"{me}-other", FIRST, *SLEEP)
    watchdog = Watchdog(me)
    watchdog.guard(FIRST)
    watchdog.forget(FIRST)
    first.wait(10)
    wait_until(lambda: watchdog.check() and bool(caplog.records))
    assert [record.getMessage() for record in caplog.records] == [
        f"Processes that outlived their trial are ended: sleep ({first.pid})."
    ]
    assert second.poll() is None
    watchdog.close()
    second.wait(10)
    assert foreign.poll() is None, "it belongs to another worker"


def test_one_that_ignores_the_request_is_killed(
    me: str, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    deaf = start(me, FIRST, sys.executable, "-c", DEAF)
    assert deaf.stdout is not None and deaf.stdout.readline() == b"deaf\n"
    watchdog = Watchdog(me)
    watchdog.close()
    assert deaf.wait(10) == -9


def leaving_one_behind(trial: Any) -> float:
    """Starts a program that outlives it."""
    subprocess.Popen(SLEEP, start_new_session=True)
    trial.report(0.5, 1)
    return 0.5


@pytest.mark.slow
def test_after_a_run_nothing_of_its_trials_runs(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLIVING", tmp_path.name)
    study = optuna.create_study(storage=sqlite_url)
    optuna_deadline.run(
        study,
        leaving_one_behind,
        cpus=1,
        deadline="20s",
        n_trials=2,
        checkpoints=tmp_path,
        worker=optuna_deadline.WorkerOptions(dashboard=False),
    )
    left = processes_with(f"OUTLIVING={tmp_path.name}")
    assert list(left.values()) == [] and len(study.trials) >= 2
