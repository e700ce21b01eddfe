"""Studies and workers for the tests, in this process and in others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from tables import HERE, WORKER


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
def start_worker(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts real worker processes, and leaves none behind."""
    started: list[subprocess.Popen[str]] = []

    def start(
        url: str, objective: str, *, cpus: int = 1, ttl: float = 30, grace: float = 15, **env: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable, "-c", WORKER, url, f"{HERE / 'objectives.py'}:{objective}",
                str(cpus), str(ttl), str(grace), str(tmp_path / "checkpoints"),
            ],
            stderr=(tmp_path / f"worker-{len(started)}.log").open("w"),
            text=True,
            env={**os.environ, **env},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()
    for written in sorted(tmp_path.glob("worker-*.log")):
        print(f"-- {written.name}\n{written.read_text()}")  # shown where the test failed


@pytest.fixture
def said(tmp_path: Path) -> Callable[[], str]:
    """All that the workers wrote, with the line breaks of their log taken out."""

    def read() -> str:
        logs = sorted(tmp_path.glob("worker-*.log"))
        return " ".join(" ".join(log.read_text() for log in logs).split())

    return read
