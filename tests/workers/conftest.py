"""Studies and workers for the tests, in this process and in others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from forked import Job, WorkerProcess
from forking import start_server


@pytest.fixture
def study(storage_url: str) -> optuna.Study:
    """A study on each database."""
    return _create(storage_url)


@pytest.fixture
def sqlite_study(sqlite_url: str) -> optuna.Study:
    """A study on SQLite, for what does not depend on the database."""
    return _create(sqlite_url)


def _create(url: str) -> optuna.Study:
    sampler = optuna.samplers.RandomSampler(seed=1)
    return optuna.create_study(
        study_name="study", storage=url, direction="maximize", sampler=sampler
    )


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts real worker processes, and leaves none behind."""
    start_server()
    started: list[WorkerProcess] = []

    def start(url: str, objective: str, **given: Any) -> WorkerProcess:
        """Names in capitals are variables of its environment, all others fields of its job."""
        environment = {name: given.pop(name) for name in list(given) if name.isupper()}
        job = Job(url, objective, given.pop("folder", tmp_path / "checkpoints"), **given)
        process = WorkerProcess(job, tmp_path / f"worker-{len(started)}.log", **environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    for written in sorted(tmp_path.glob("worker-*.log")):
        print(f"-- {written.name}\n{written.read_text()}")  # shown where the test failed


@pytest.fixture
def log_text(tmp_path: Path) -> Callable[[], str]:
    """All that the workers wrote, with the line breaks of their log taken out."""

    def read() -> str:
        logs = sorted(tmp_path.glob("worker-*.log"))
        return " ".join(" ".join(log.read_text() for log in logs).split())

    return read
