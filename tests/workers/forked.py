"""Real worker processes, forked from a server that has imported what they need.

A fresh interpreter spends seconds of processor time on imports, and the tests start hundreds of
workers. A forked one is a process like any other: it can be killed, frozen and waited for.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import NamedTuple

import optuna
from forking import CONTEXT, preload

from optuna_deadline import _crashpoints
from optuna_deadline.cli.app import in_one_sentence, set_up_logging
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.options import WorkerOptions

_OBJECTIVES = Path(__file__).with_name("objectives.py")
_DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG
_reading = threading.Lock()  # an exit code comes once, and starting a process looks for others'

# What a worker imports, most of it late, by the time it trains.
preload(
    "optuna_deadline.cli.app", "optuna_deadline.elastic", "optuna_deadline.rank.fork_server",
    "optuna.storages._rdb.storage", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql.psycopg2",
    "alembic.command", "alembic.config", "alembic.script", "psycopg2.extras", "rich.logging",
)  # fmt: skip


class Job(NamedTuple):
    """What a worker is started with."""

    url: str
    objective: str  #: its name in objectives.py
    folder: Path | str  #: for checkpoints, or its URL
    study: str = "study"
    pool: str | None = None
    cpus: int = 1
    ttl: float = 30
    grace: float = 15
    weight: float | None = None
    sharing: str = "even"
    hang_timeout: float = 900.0
    keep_warm: int = 0
    multi_node: bool = False


class WorkerProcess:
    """A worker, with what the tests use of :class:`subprocess.Popen`.

    Args:
        job: What it works at.
        log: Where it writes, after what is there already.
        environment: Variables beside those of this process.
    """

    def __init__(self, job: Job, log: Path, **environment: str) -> None:
        self._process = CONTEXT.Process(
            target=_work, args=(job, log, {**os.environ, **environment}), daemon=True
        )
        with _reading:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with _reading:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """A signal to it, if it still lives."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to leave."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, also where it is frozen."""
        self.send_signal(signal.SIGKILL)


def _work(job: Job, log: Path, environment: dict[str, str]) -> None:
    """The worker's program, in a process as a fresh interpreter would have it."""
    # Neither the server's pipes nor the life of the tests' other workers may hang on this one;
    # the server ends with the tests, whatever ends them.
    os.closerange(3, 4096)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(_crashpoints)  # read where a process begins
    set_up_logging()
    with in_one_sentence():
        study = optuna.load_study(study_name=job.study, storage=job.url)
        worker = ElasticWorker(
            study,
            f"{_OBJECTIVES}:{job.objective}",
            agree(study, None),
            WorkerOptions(
                cpus=job.cpus,
                pool=job.pool,
                weight=job.weight,
                sharing=job.sharing,
                checkpoints=job.folder,
                hang_timeout=job.hang_timeout,
                keep_warm=job.keep_warm,
                multi_node=job.multi_node,
            ),
            ttl=job.ttl,
            grace=job.grace,
        )
        sys.exit(0 if worker.run().settled else 130)
