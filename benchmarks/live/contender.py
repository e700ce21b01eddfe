"""One process of one contender: reports that it is ready, gets the deadline, and tunes.

All contenders tune the demo's objective on one database. The user's imports happen before the
clock starts; our ranks start within the time.
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

import optuna_deadline
from optuna_deadline import DeadlineGate, DeadlinePruner, DeadlineSampler

OBJECTIVE = "optuna_deadline_demo.digits:objective"
READY = "ready"
OVER = "over"


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
    """

    url: str
    deadline: float
    seconds: float
    seed: int
    slots: int
    folder: Path

    def study(self, sampler: BaseSampler, pruner: BasePruner | None = None) -> optuna.Study:
        """The study of all processes of this contender."""
        return optuna.load_study(
            study_name="live", storage=self.url, sampler=sampler, pruner=pruner
        )


def elastic(task: Task) -> None:
    """Run this project with a worker that has all slots."""
    study = task.study(sampler=DeadlineSampler(TPESampler(seed=task.seed)))
    until = datetime.fromtimestamp(task.deadline, timezone.utc)
    optuna_deadline.run(
        study,
        OBJECTIVE,
        cpus=task.slots,
        oversubscribe=True,
        deadline=until,
        checkpoints=task.folder,
    )


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
    if name.startswith("ray_"):
        from benchmarks.live import ray_tune

        ray_tune.start(int(slots))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(READY, flush=True)
    deadline, seconds = map(float, sys.stdin.readline().split())
    contend(Task(url, deadline, seconds, int(seed), int(slots), Path(folder)))
    print(OVER, time.time(), flush=True)


if __name__ == "__main__":
    main()
