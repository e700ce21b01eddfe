"""One process of one contender: reports that it is ready, gets the deadline, and tunes.

All contenders tune the same task of the demo, on one database. All imports happen before the
clock starts, also those of our fork server; our ranks start within the time.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna_deadline_demo import TASKS

from benchmarks.live.reports import Report, append
from optuna_deadline import DeadlineGate, DeadlinePruner, DeadlineSampler
from optuna_deadline.elastic import ElasticWorker, agree, prepare
from optuna_deadline.elastic.arguments import preload
from optuna_deadline.options import WorkerOptions
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.worker.devices import Offer

READY = "ready"
OVER = "over"


@dataclass(frozen=True)
class Contest:
    """The settings of one process.

    Attributes:
        task: The name of the demo's task.
        url: The study's database.
        deadline: Seconds since the epoch.
        seconds: Seconds from the start to the deadline.
        seed: The seed of this process's sampler.
        slots: The slots of the machine.
        folder: The folder for checkpoints.
        server: A fork server that has loaded the objective, for the contenders that need one.
    """

    task: str
    url: str
    deadline: float
    seconds: float
    seed: int
    slots: int
    folder: Path
    server: ForkServer | None = None

    @cached_property
    def objective(self) -> Any:
        """What to train."""
        return importlib.import_module(f"optuna_deadline_demo.{self.task}").objective

    def logged(self, trial: optuna.Trial) -> float:
        """Train a trial, and write each report with its time to a file."""
        report = trial.report

        def report_and_log(value: float, step: int) -> None:
            found = Report(time.time(), str(trial.number), step, value, trial.params.get("width"))
            append(self.folder, found)
            report(value, step)

        trial.report = report_and_log  # type: ignore[method-assign]
        return float(self.objective(trial))

    def study(self, sampler: BaseSampler, pruner: BasePruner | None = None) -> optuna.Study:
        """The study of all processes of this contender."""
        return optuna.load_study(
            study_name="live", storage=self.url, sampler=sampler, pruner=pruner
        )


def elastic(contest: Contest) -> None:
    """Run this project with a worker that has all slots."""
    study = contest.study(sampler=DeadlineSampler(TPESampler(seed=contest.seed)))
    until = datetime.fromtimestamp(contest.deadline, timezone.utc)
    source, offer = _prepare(contest.task, contest.slots, contest.folder)
    ElasticWorker(
        study,
        source,
        agree(study, until),
        WorkerOptions(checkpoints=contest.folder),
        offer=offer,
        fork_server=contest.server,
    ).run()


def _prepare(task: str, slots: int, folder: Path) -> tuple[ObjectiveSource, Offer]:
    objective = TASKS[task].objective
    options = WorkerOptions(cpus=slots, oversubscribe=True, checkpoints=folder)
    return prepare(objective, options)


def plain(contest: Contest) -> None:
    """Run this project without workers: pruner, sampler and gate in ``study.optimize``."""
    until = datetime.fromtimestamp(contest.deadline, timezone.utc)
    study = contest.study(
        sampler=DeadlineSampler(TPESampler(seed=contest.seed)),
        pruner=DeadlinePruner(until, max_resource=contest.objective.max_epochs),
    )
    study.optimize(contest.logged, callbacks=[DeadlineGate()])


def _optuna(pruner: Callable[[int], BasePruner]) -> Callable[[Contest], None]:
    def contend(contest: Contest) -> None:
        chosen = pruner(contest.objective.max_epochs)
        study = contest.study(sampler=TPESampler(seed=contest.seed), pruner=chosen)
        study.optimize(contest.logged, timeout=contest.seconds)

    return contend


def _ray(resources: bool) -> Callable[[Contest], None]:
    def contend(contest: Contest) -> None:
        from benchmarks.live import ray_tune

        ray_tune.tune_until(contest, resources=resources)

    return contend


#: The contenders, and whether each needs a process for each slot.
CONTENDERS: dict[str, tuple[Callable[[Contest], None], bool]] = {
    "elastic": (elastic, False),
    "plain": (plain, True),
    "optuna_hyperband": (_optuna(lambda last: HyperbandPruner(max_resource=last)), True),
    "optuna_median": (_optuna(lambda _: MedianPruner()), True),
    "optuna_random": (_optuna(lambda _: NopPruner()), True),
    "ray_asha": (_ray(resources=False), False),
    "ray_resources": (_ray(resources=True), False),
}


def missing(name: str) -> str | None:
    """The missing packages of a contender."""
    needed = ("ray", "pandas", "pyarrow") if name.startswith("ray_") else ()
    lacking = any(importlib.util.find_spec(package) is None for package in needed)
    return 'Ray Tune: pip install "ray[tune]"' if lacking else None


def main() -> None:
    """Read ``NAME TASK URL SEED SLOTS FOLDER``; from standard input, deadline and seconds.

    It prints a line when it is ready and when its call has returned.
    """
    name, task, url, seed, slots, folder = sys.argv[1:]
    contend, many = CONTENDERS[name]
    if many:
        import torch

        torch.set_num_threads(1)  # a slot is one core, as in this project
    # Every contender has loaded the objective before its time runs.
    server = None
    if name == "elastic":
        server = preload(*_prepare(task, int(slots), Path(folder)), "1h", Path(folder))
    else:
        importlib.import_module(f"optuna_deadline_demo.{task}")
    if name.startswith("ray_"):
        from benchmarks.live import ray_tune

        ray_tune.start(int(slots))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(READY, flush=True)
    deadline, seconds = map(float, sys.stdin.readline().split())
    contend(Contest(task, url, deadline, seconds, int(seed), int(slots), Path(folder), server))
    print(OVER, time.time(), flush=True)


if __name__ == "__main__":
    main()
