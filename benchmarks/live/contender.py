"""One process of one contender: reports that it is ready, gets the deadline, and tunes.

All contenders tune the demo's objective on one database. All imports happen before the clock
starts, also those of our fork server; our ranks start within the time.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, TPESampler

from optuna_deadline import DeadlineGate, DeadlinePruner, DeadlineSampler
from optuna_deadline.elastic import ElasticWorker, agree, prepare
from optuna_deadline.elastic.arguments import preload
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.worker.devices import Offer

OBJECTIVE = "optuna_deadline_demo.digits:objective"
READY = "ready"
OVER = "over"
_RESOURCES = {"min_resource": 1, "max_resource": None, "reduction_factor": None}


@dataclass(frozen=True)
class Task:
    """The settings of one process.

    Attributes:
        url: The study's database.
        deadline: Seconds since the epoch.
        seconds: Seconds from the start to the deadline.
        seed: The seed of this process's sampler.
        slots: The slots of the machine.
        folder: The folder for checkpoints.
        server: A fork server that has loaded the objective, for the contenders that need one.
    """

    url: str
    deadline: float
    seconds: float
    seed: int
    slots: int
    folder: Path
    server: ForkServer | None = None

    def study(self, sampler: BaseSampler, pruner: BasePruner | None = None) -> optuna.Study:
        """The study of all processes of this contender."""
        return optuna.load_study(
            study_name="live", storage=self.url, sampler=sampler, pruner=pruner
        )


def elastic(task: Task) -> None:
    """Run this project with a worker that has all slots."""
    study = task.study(sampler=DeadlineSampler(TPESampler(seed=task.seed)))
    until = datetime.fromtimestamp(task.deadline, timezone.utc)
    source, offer = _prepare(task.slots, task.folder)
    ElasticWorker(
        study, source, agree(study, until, None, _RESOURCES), offer=offer,
        checkpoints=task.folder, fork_server=task.server,
    ).run()  # fmt: skip


def _prepare(slots: int, folder: Path) -> tuple[ObjectiveSource, Offer]:
    return prepare(OBJECTIVE, None, slots, oversubscribe=True, checkpoints=folder)


def plain(task: Task) -> None:
    """Run this project without workers: pruner, sampler and gate in ``study.optimize``."""
    from optuna_deadline_demo.digits import MAX_EPOCHS, objective

    until = datetime.fromtimestamp(task.deadline, timezone.utc)
    study = task.study(
        sampler=DeadlineSampler(TPESampler(seed=task.seed)),
        pruner=DeadlinePruner(until, max_resource=MAX_EPOCHS),
    )
    study.optimize(objective, callbacks=[DeadlineGate()])


def _optuna(pruner: Callable[[int], BasePruner]) -> Callable[[Task], None]:
    def contend(task: Task) -> None:
        from optuna_deadline_demo.digits import MAX_EPOCHS, objective

        study = task.study(sampler=TPESampler(seed=task.seed), pruner=pruner(MAX_EPOCHS))
        study.optimize(objective, timeout=task.seconds)

    return contend


def _ray(resources: bool) -> Callable[[Task], None]:
    def contend(task: Task) -> None:
        from benchmarks.live import ray_tune

        ray_tune.tune_until(task.seconds, task.seed, task.slots, task.folder, resources=resources)

    return contend


#: The contenders, and whether each needs a process for each slot.
CONTENDERS: dict[str, tuple[Callable[[Task], None], bool]] = {
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
    """Read ``NAME URL SEED SLOTS FOLDER``, and from standard input the deadline and the seconds.

    It prints a line when it is ready and when its call has returned.
    """
    name, url, seed, slots, folder = sys.argv[1:]
    contend, many = CONTENDERS[name]
    if many:
        import torch
        from optuna_deadline_demo import digits  # noqa: F401  (what the objective needs)

        torch.set_num_threads(1)  # a slot is one core, as in this project
    server = None
    if name == "elastic":  # every contender has loaded the objective before its time runs
        server = preload(*_prepare(int(slots), Path(folder)), "1h", Path(folder))
    if name.startswith("ray_"):
        from benchmarks.live import ray_tune

        ray_tune.start(int(slots))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(READY, flush=True)
    deadline, seconds = map(float, sys.stdin.readline().split())
    contend(Task(url, deadline, seconds, int(seed), int(slots), Path(folder), server))
    print(OVER, time.time(), flush=True)


if __name__ == "__main__":
    main()
