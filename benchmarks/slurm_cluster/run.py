"""The run: three nodes, a job that is cancelled, and a job that reaches its time limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import optuna

from benchmarks.slurm_cluster.cluster import SlurmCluster
from benchmarks.stretches import OBJECTIVE, Stretch, following, read_stretches
from benchmarks.stretches.objective import LOGS
from benchmarks.support.postgres import EmbeddedPostgres
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study.terms import Given

GPUS = 2  #: of each node
NODES = 3
MINUTES = 2  #: time limit of the job that is requeued
_PROGRAM = [sys.executable, "-c", "from optuna_deadline.cli import app; app()"]


@dataclass(frozen=True)
class Figures:
    """The result of the run, in seconds unless stated otherwise."""

    slots: int
    cluster_up: float
    submitting: float  #: the time of one `optuna-deadline slurm`
    first_step: float  #: from the first submission
    all_slots: float | None  #: from the first submission until every slot was used
    cancelled: float  #: from the first submission
    cancel_freed: float  #: from scancel until the job's slots were released
    cancel_trials: int
    cancel_steps_lost: int
    cancel_elsewhere: float | None  #: until the first of its trials trained elsewhere
    limit_left_before: float  #: from the last step to the job's time limit
    limit_trials: int
    limit_steps_lost: int
    limit_back: float | None  #: from the last step before the limit to the first one after it
    limit_requeued: float | None  #: the part of it until SLURM had started the job again
    restarts: int  #: the restarts of that job
    slot_seconds: float
    trials: int
    best: float | None
    checkpoint_ok: bool
    overshoot: float  #: from the deadline until the study had ended


def run(folder: Path, *, seconds: float, cancel_at: float) -> Figures:
    """Run everything.

    Args:
        folder: The folder for checkpoints and logs.
        seconds: Seconds to the deadline.
        cancel_at: Seconds from the first submission to the cancellation.
    """
    logs = folder / "stretches"
    logs.mkdir(parents=True)
    began = time.monotonic()
    with EmbeddedPostgres() as server, SlurmCluster(NODES, GPUS) as cluster:
        up = time.monotonic() - began
        url = server.create_database("slurm")
        study = optuna.create_study(
            study_name="slurm", storage=url, direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=1),
        )  # fmt: skip
        terms = agree(study, f"{seconds}s", Given(None, {"max_resource": 1000}))
        table = AllocationTable(open_table(study), "slurm", terms.study_id)

        def submit(*words: str) -> str:
            return _submit(cluster, url, folder, *words)

        start = time.monotonic()
        limited = submit("--gpus-per-node", str(GPUS), "--time", str(MINUTES))
        submitting = time.monotonic() - start
        array = submit("--gpus-per-node", str(GPUS), "--array", str(NODES - 1))
        slots = NODES * GPUS
        full = _when(lambda: _in_use(table) == slots, start + cancel_at)
        over = time.monotonic() + cluster.seconds_left(limited)

        _sleep_until(start + cancel_at)
        number = cluster.field(f"{array}_0", "JobId")
        cancelled = time.monotonic()
        cluster.ask("scancel", f"{array}_0")
        free = _when(lambda: not _works(table, number), cancelled + 60) or time.monotonic()

        _sleep_until(over - 25)
        _when(lambda: not _works(table, limited), over + 60)
        again = _when(lambda: cluster.field(limited, "Restarts") == "1", over + 60)
        if again is not None:
            again = _when(lambda: cluster.state(limited) == "RUNNING", over + 60)
        restarts = 0
        while not table.orders("").settled:
            with suppress(ValueError):
                restarts = int(cluster.field(limited, "Restarts"))
            time.sleep(0.2)
        settled = table.now()
        result = ElasticWorker(
            study,
            OBJECTIVE,
            terms,
            WorkerOptions(cpus=1, checkpoints=folder / "checkpoints", dashboard=False),
        ).result()
        _when(lambda: not cluster.ask("squeue", "--noheader"), time.monotonic() + 60)
        trials = len(table.trials())
    stretches = read_stretches(logs)
    victim = [s for s in stretches if _is_of(s, number) and s.last > cancelled - 0.5]
    first_life = [s for s in stretches if _is_of(s, limited) and s.begun < over]
    last = max(s.last for s in first_life)
    ended = [s for s in first_life if s.last > last - 1.0]
    back = [s.begun for s in stretches if _is_of(s, limited) and s.begun > last]
    elsewhere = [
        after.begun - cancelled for s in victim if (after := following(s, stretches)) is not None
    ]
    return Figures(
        slots=slots,
        cluster_up=round(up, 1),
        submitting=round(submitting, 1),
        first_step=round(min(s.begun for s in stretches) - start, 1),
        all_slots=None if full is None else round(full - start, 1),
        cancelled=round(cancelled - start, 1),
        cancel_freed=round(free - cancelled, 1),
        cancel_trials=len(victim),
        cancel_steps_lost=_lost(victim, stretches),
        cancel_elsewhere=round(min(elsewhere), 1) if elsewhere else None,
        limit_left_before=round(over - last, 1),
        limit_trials=len(ended),
        limit_steps_lost=_lost(ended, stretches),
        limit_back=round(min(back) - last, 1) if back else None,
        limit_requeued=None if again is None else round(again - last, 1),
        restarts=restarts,
        slot_seconds=round(sum(s.slots * (s.last - s.begun) for s in stretches), 1),
        trials=trials,
        best=result.value,
        checkpoint_ok=result.checkpoint_ok,
        overshoot=round(settled - terms.deadline, 2),
    )


def _submit(cluster: SlurmCluster, url: str, folder: Path, *words: str) -> str:
    """Submit a job as a user does; return its number."""
    answer = subprocess.run(
        [*_PROGRAM, "slurm", OBJECTIVE, "--study", "slurm", "--storage", url, "--no-dashboard",
         "--checkpoints", str(folder / "checkpoints"), "--logs", str(folder / "logs"), *words],
        env={**os.environ, **cluster.environment, LOGS: str(folder / "stretches")},
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = re.search(r"Submitted job (\d+)", answer.stdout)
    assert found is not None, answer.stderr
    return found[1]


def _is_of(stretch: Stretch, job: str) -> bool:
    return stretch.host.endswith(f"-{job}")


def _lost(before: list[Stretch], stretches: list[Stretch]) -> int:
    """The steps that were trained twice."""
    return sum(
        s.trained_to + 1 - after.first
        for s in before
        if (after := following(s, stretches)) is not None
    )


def _works(table: AllocationTable, job: str) -> bool:
    return any(row.host.endswith(f"-{job}") for row in table.workers())


def _in_use(table: AllocationTable) -> int:
    return sum(slot.holder is not None for slot in table.slots())


def _when(condition: Callable[[], bool], latest: float) -> float | None:
    while time.monotonic() < latest:
        if condition():
            return time.monotonic()
        time.sleep(0.2)
    return None


def _sleep_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.monotonic()))
