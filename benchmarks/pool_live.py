"""``python -m benchmarks.pool_live``: four unequal studies on four CPU slots, real workers.

A search of 60 s, one of 240 s, six short trainings that are due in 90 s, and twelve without a near
deadline. With each divider the benchmark says how many slot-seconds the short search had by its
end, and when the work was done. It takes four minutes.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import optuna
from rich.console import Console
from rich.table import Table

import optuna_deadline
from benchmarks.support.postgres import EmbeddedPostgres
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given

_STEP = 0.25  # seconds
#: By study: policy, deadline, trainings that have to be done, steps of a training.
STUDIES = {
    "short search": ("adaptive_halving", "60s", None, 80),
    "long search": ("adaptive_halving", "240s", None, 80),
    "dated work": ("fifo", "90s", 6, 40),
    "undated work": ("fifo", "20m", 12, 60),
}
_WATCHED = 120.0  # seconds


def train(trial: optuna.Trial) -> float:
    """Steps that sleep; the last one comes from the study's parameters."""
    segment = optuna_deadline.segment(trial)
    last = int(os.environ["POOL_STEPS"])
    first = int(segment.resume.read_text()) + 1 if segment.resume else 0
    x = trial.suggest_float("x", 0.0, 1.0)
    segment.horizon(last)
    value = 0.0
    for step in range(first, last + 1):
        time.sleep(_STEP / segment.world_size**0.9)
        value = x * (1 - math.exp(-(step + 1) / 20))
        trial.report(value, step)
        directive = segment.directive()
        if directive.leave or step == last:
            segment.save(partial(_write, str(step)), step=step, value=value)
        if directive.leave:
            segment.leave(directive)
    return value


def _write(text: str, path: Path) -> None:
    path.write_text(text)


def run(url: str, divider: str, folder: Path) -> list[tuple[str, float, float | None, int]]:
    """By study: its slot-seconds, when it ended if it has, and its complete trials."""
    tables, workers = {}, []
    for name, (policy, deadline, trials, steps) in STUDIES.items():
        study = optuna.create_study(study_name=name, storage=url, direction="maximize")
        agree(study, deadline, Given(policy, {"max_resource": steps + 1, "n_trials": trials}))
        tables[name] = AllocationTable(open_table(study), "lab", study._study_id)
        command = [
            str(Path(sys.executable).with_name("optuna-deadline")), "worker", f"{__file__}:train",
            "--study", name, "--storage", url, "--cpus", "4", "--oversubscribe",
            "--pool", "lab", "--sharing", divider, "--checkpoints", str(folder),
        ]  # fmt: skip
        log = (folder / f"{name}.log").open("w")
        environment = {**os.environ, "POOL_STEPS": str(steps)}
        workers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    began = next(iter(tables.values())).now()
    time.sleep(_WATCHED)
    found = []
    for name, table in tables.items():
        now, settled = table.now(), table.orders("").settled
        segments = table.segments()
        used = sum(row.slots * ((row.ended or now) - row.granted) for row in segments)
        ended = max(row.ended or now for row in segments) - began
        complete = sum(row.state == "complete" for row in table.trials())
        found.append((name, used, ended if settled else None, complete))
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.wait(30)
    return found


def main() -> None:
    """Run with both dividers, and print one row per study and divider."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table = Table("divider", "study", "slot-seconds", "ended after", "complete trials")
    with EmbeddedPostgres() as server:
        for divider in ("even", "fair"):
            with tempfile.TemporaryDirectory() as folder:
                for name, used, ended, complete in run(
                    server.create_database(divider), divider, Path(folder)
                ):
                    when = "-" if ended is None else f"{ended:.1f} s"
                    table.add_row(divider, name, f"{used:.0f}", when, str(complete))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
