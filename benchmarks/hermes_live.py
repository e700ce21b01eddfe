"""``python -m benchmarks.hermes_live [--seeds N]``: Hermes and first come with real workers.

Forty configurations on four CPU slots, as in the simulated study of ``benchmarks.headlines``: each
epoch sleeps for 0.15 s and reports the drawn curve. The benchmark says after how many seconds the
first report has reached the target. Three seeds take about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import optuna
from rich.console import Console
from rich.table import Table

import optuna_deadline
from benchmarks.headlines.hermes_study import CONFIGURATIONS, EPOCHS, SLOTS, TARGET, population
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given

EPOCH = 0.15  # seconds
POLICIES = ("fifo", "hermes")
_LONGEST = 2 * CONFIGURATIONS * EPOCHS * EPOCH / SLOTS  # seconds


def train(trial: optuna.Trial) -> float:
    """Report one of the drawn curves, an epoch at a time."""
    workload = population("quick", int(os.environ["GOOD"]), int(os.environ["SEED"]))
    curve = workload.curves[trial.suggest_int("configuration", 0, CONFIGURATIONS - 1)]
    segment = optuna_deadline.segment(trial)
    segment.horizon(EPOCHS - 1)
    first = int(segment.resume.read_text()) + 1 if segment.resume else 0
    for epoch in range(first, EPOCHS):
        time.sleep(EPOCH / segment.world_size**0.9)
        trial.report(curve[epoch], epoch)
        directive = segment.directive()
        if directive.leave:
            segment.save(partial(_write, str(epoch)), step=epoch, value=curve[epoch])
            segment.leave(directive)
    return curve[-1]


def _write(text: str, path: Path) -> None:
    path.write_text(text)


def seconds_to_target(policy: str, good: int, seed: int, folder: Path) -> float:
    """Seconds from the start of training to the first report at the target."""
    url = f"sqlite:///{folder}/study.db"
    study = optuna.create_study(study_name="study", storage=url, direction="maximize")
    for configuration in range(CONFIGURATIONS):
        study.enqueue_trial({"configuration": configuration})
    agree(study, "1h", Given(policy, {"max_resource": EPOCHS, "n_trials": CONFIGURATIONS}))
    table = AllocationTable(open_table(study), "study", study._study_id)
    command = [
        str(Path(sys.executable).with_name("optuna-deadline")), "worker", f"{__file__}:train",
        "--study", "study", "--storage", url, "--cpus", str(SLOTS), "--oversubscribe",
        "--checkpoints", str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "GOOD": str(good), "SEED": str(seed)}
    with (folder / "worker.log").open("w") as log:
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        end, after, found = time.monotonic() + _LONGEST, 0, None
        while found is None and worker.poll() is None and time.monotonic() < end:
            time.sleep(0.5)
            for row in table.reports(after):
                after = max(after, row.id)
                found = row.at if found is None and row.value >= TARGET else found
        worker.terminate()
        worker.wait()
    if found is None:
        raise SystemExit(f"{policy} has not reached the target; see {log.name}")
    return found - min(segment.granted for segment in table.segments())


def main() -> None:
    """Parse the command line, run, and print a row for each number of good configurations."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hermes_live", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--good", type=int, nargs="+", default=[1, 10])
    given = parser.parse_args()
    table = Table("good of 40", *(f"{policy} (s)" for policy in POLICIES), "times sooner")
    for good in given.good:
        found: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for seed in range(given.seeds):
            for policy in POLICIES:
                with tempfile.TemporaryDirectory() as folder:
                    found[policy].append(seconds_to_target(policy, good, seed, Path(folder)))
        ratios = [a / b for a, b in zip(*found.values(), strict=True)]
        table.add_row(
            str(good),
            *map(_listed, found.values()),
            f"{statistics.geometric_mean(ratios):.2f} ({_listed(ratios)})",
        )
    Console(width=120).print(table)


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.1f}" for number in numbers)


if __name__ == "__main__":
    main()
