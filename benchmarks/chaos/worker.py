"""One worker of the chaos run: an ordinary worker with a short lease."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa

from optuna_deadline.cli.app import in_one_sentence, set_up_logging
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.options import WorkerOptions

TTL = 3.0
GRACE = 1.5
POOL = "chaos"  # both studies share it
OBJECTIVE = Path(__file__).with_name("objective.py")


@dataclass(frozen=True)
class Place:
    """The place of a worker."""

    study: str
    url: str
    cpus: int
    folder: Path  #: the folder of the run
    host: str = "chaos"  #: workers of one host offer the same slots
    last: int = 60  #: the last step of a trial
    ticks: int = 20  #: the ticks of a step on one slot

    @property
    def usage(self) -> Path:
        """The folder in which ranks write their use of slots."""
        return self.folder / "usage"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, on the disk that may be filled."""
        return self.folder / "disk" / "checkpoints"

    @property
    def clock(self) -> Path:
        """The file with the step of the clock, since SQLite uses the process's clock."""
        return self.folder / "clock"


def work(place: Place, log: Path) -> None:
    """Train until the study has ended or a signal comes."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ["OPTUNA_DEADLINE_HOST"] = place.host
    os.environ["OPTUNA_DEADLINE_ADDRESS"] = "127.0.0.1"  # of all hosts here
    os.environ["CHAOS_USAGE"], os.environ["CHAOS_STUDY"] = str(place.usage), place.study
    os.environ["CHAOS_LAST"], os.environ["CHAOS_TICKS"] = str(place.last), str(place.ticks)
    os.environ["COLUMNS"] = "200"  # for the log
    if place.url.startswith("sqlite"):
        step_sqlite(place.clock)
    print(f"== {os.getpid()} {time.monotonic():.3f}", flush=True)
    set_up_logging()
    with in_one_sentence():
        study = optuna.load_study(
            study_name=place.study, storage=place.url, sampler=optuna.samplers.RandomSampler()
        )
        worker = ElasticWorker(
            study,
            f"{OBJECTIVE}:train",
            agree(study, None),
            WorkerOptions(
                cpus=place.cpus,
                pool=POOL,
                checkpoints=place.checkpoints,
                keep_warm=2,
                multi_node=True,
            ),
            ttl=TTL,
            grace=GRACE,
        )
        settled = worker.run().settled
    sys.exit(0 if settled else 130)


def step_sqlite(clock: Path) -> None:
    """Step the time of day of this process's SQLite by the number in a file."""

    def julianday(_: str) -> float:
        return (time.time() + float(clock.read_text())) / 86400 + 2440587.5

    @sa.event.listens_for(sa.Engine, "connect")
    def _step(connection: Any, _record: Any) -> None:
        if hasattr(connection, "create_function"):
            connection.create_function("julianday", 1, julianday)
