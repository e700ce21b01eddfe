"""``python -m benchmarks.predicted --task bytes``: a demo task's search in virtual time.

A table has too few configurations for a sampler, which would soon have to try old ones again. Here
trees are fitted to the table of a task and predict the learning curve and the pace of any
parameters, which a sampler chooses by the task's own ``suggest``. Each seed has other trees and
another sampler; all contenders of a seed have the same trees. Contenders are policies or Optuna's
pruners, each with a sampler: ``adaptive_halving+deadline``, ``optuna_median+tpe``. The regret is 0
for the best of 1,000 drawn configurations and 1 for the median one; a search can be below 0.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from rich.table import Table

from benchmarks.accuracy.peers import PEERS, OptunaPruner
from benchmarks.accuracy.search import AskedSampler
from benchmarks.measuring import machine, output_file, quiet, screen, with_error, write_json
from benchmarks.rivals import make_policy
from benchmarks.studies import simulate_all
from optuna_deadline import DeadlineSampler
from optuna_deadline.forecasting.throughput import PRIOR_EXPONENT_OF_CPUS, Speedup
from optuna_deadline.policies import Policy
from optuna_deadline.samplers._prospects import Look
from optuna_deadline.simulation import Cluster, Simulation
from optuna_deadline.simulation.comparison import Estimate
from optuna_deadline.simulation.environment import World
from optuna_deadline.simulation.tables import load
from optuna_deadline.simulation.workload import Workload

TASKS = ("bytes", "mnist1d")
CONTENDERS = ("adaptive_halving+deadline", "optuna_median+tpe", "optuna_hyperband+tpe")
SAMPLERS: dict[str, Callable[[int, Look], BaseSampler]] = {
    "random": lambda seed, _: RandomSampler(seed=seed),
    "tpe": lambda seed, _: TPESampler(seed=seed),
    "gp": lambda seed, _: GPSampler(seed=seed),
    "deadline": lambda seed, look: DeadlineSampler(TPESampler(seed=seed), look=look),
    "deadline_gp": lambda seed, look: DeadlineSampler(GPSampler(seed=seed), look=look),
    "deadline_random": lambda seed, look: DeadlineSampler(RandomSampler(seed=seed), look=look),
}
_TABLES = Path(__file__).parent / "tables"
_DRAWN = 1000  # configurations that give the scale of the regret
_MOST = 1000  # trials of a study
_LEAST = -20.0  # a diverged training; on the table's scale the median configuration is 0
_TREES = 20


class Landscape:
    """The learning curve and the pace of any parameters of a task.

    Args:
        task: One of :data:`TASKS`.
        seed: The seed of the trees.
    """

    def __init__(self, task: str, seed: int) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        table = _table(task)
        self._suggest = importlib.import_module(f"optuna_deadline_demo.{task}").objective.suggest
        study = optuna.create_study(sampler=RandomSampler(seed=seed))
        drawn = [self.ask(study) for _ in range(_DRAWN)]
        [first, *_] = study.get_trials(deepcopy=False)
        self.space: Mapping[str, BaseDistribution] = first.distributions
        curves = np.nan_to_num(np.array(table.curves), nan=_LEAST)
        known = np.array([self._row(given) for given in table.hyperparameters])
        self._curves = ExtraTreesRegressor(_TREES, random_state=seed)
        self._curves.fit(known, np.maximum(curves, _LEAST))
        self._paces = ExtraTreesRegressor(_TREES, random_state=seed)
        self._paces.fit(known, np.log(table.step_seconds))
        self.steps = table.steps
        ends, paces = self._predict(drawn)
        self._best, self._median = ends.max(), float(np.median(ends.max(axis=1)))
        self.typical_pace = float(np.median(paces))

    def ask(self, study: optuna.Study) -> dict[str, Any]:
        """The parameters of a new trial of a study."""
        trial = study.ask()
        self._suggest(trial)
        return trial.params

    def look_up(self, params: Mapping[str, Any]) -> tuple[tuple[float, ...], float]:
        """The curve of a configuration, and its seconds for a step on one slot."""
        curves, paces = self._predict([params])
        return tuple(curves[0].tolist()), float(paces[0])

    def regret(self, value: float | None) -> float:
        """0 for the best drawn configuration's end, 1 for the median one's or no model."""
        if value is None:
            return 1.0
        return float((self._best - value) / (self._best - self._median))

    def _predict(
        self, given: Sequence[Mapping[str, Any]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows = [self._row(self._internal(params)) for params in given]
        return self._curves.predict(rows), np.exp(self._paces.predict(rows))

    def _internal(self, params: Mapping[str, Any]) -> dict[str, float]:
        """Optuna's internal values, which a table has."""
        return {name: kind.to_internal_repr(params[name]) for name, kind in self.space.items()}

    def _row(self, internal: Mapping[str, float]) -> list[float]:
        """Internal values as numbers for the trees, a column for each name."""
        row: list[float] = []
        for name, kind in self.space.items():
            if isinstance(kind, CategoricalDistribution):
                row += [float(internal[name] == place) for place in range(len(kind.choices))]
            else:
                scale = math.log if getattr(kind, "log", False) else float
                row.append(scale(internal[name]))
        return row


@lru_cache(4)  # contenders of a seed follow each other
def _landscape(task: str, seed: int) -> Landscape:
    return Landscape(task, seed)


@cache
def _table(task: str) -> Workload:
    return next(one for one in load(_TABLES) if one.name == f"recorded/{task}")


class LandscapeSearch:
    """A sampler's search in a landscape.

    Args:
        landscape: The landscape.
        make_sampler: Makes the sampler, with what a DeadlineSampler looks at.

    Attributes:
        workload: Has a curve for each trial; that of a trial is there once it was asked for.
    """

    def __init__(self, landscape: Landscape, make_sampler: Callable[[Look], BaseSampler]) -> None:
        self._landscape = landscape
        self._curves = [(0.0,) * landscape.steps] * _MOST
        self._paces = [landscape.typical_pace] * _MOST
        self._params: list[dict[str, Any]] = [{}] * _MOST
        rows = cast(Any, (self._curves, self._paces, self._params))
        self.workload = Workload("predicted", *rows)
        self._asked = AskedSampler(self._params, landscape.space, make_sampler)

    def __call__(self, world: World, number: int) -> int:
        """Ask the sampler; the number of the trial is that of its configuration."""
        self._params[number] = self._landscape.ask(self._asked.study(world))
        self._curves[number], self._paces[number] = self._landscape.look_up(self._params[number])
        return number


@dataclass(frozen=True)
class PredictedStudy:
    """One study of one contender.

    Attributes:
        contender: A policy or a pruner, and a sampler: ``policy+sampler``.
        deadline: In seconds.
        speedup: The speed of a trial on two slots.
    """

    contender: str
    task: str
    seed: int
    deadline: float
    slots: int
    speedup: float

    def run(self) -> tuple[float, int]:
        """The regret of the best model at the deadline, and the number of trials."""
        quiet()
        landscape = _landscape(self.task, self.seed)
        name, _, sampler = self.contender.partition("+")
        search = LandscapeSearch(landscape, lambda look: SAMPLERS[sampler](self.seed, look))
        policy: Policy
        if name in PEERS:
            policy = OptunaPruner(PEERS[name](landscape.steps), self.seed, _MOST)
        else:
            policy = make_policy(name, {"max_resource": landscape.steps})
        # as measured of live studies of these tasks
        cluster = Cluster(
            slots=self.slots, startup=0.4, stop=0.1, poll=0.05, reading=0.05,
            speedup=Speedup({2: self.speedup}, exponent=PRIOR_EXPONENT_OF_CPUS),
        )  # fmt: skip
        simulation = Simulation(
            policy, search.workload, cluster,
            deadline=self.deadline, seed=self.seed, search=search,
        )  # fmt: skip
        value = simulation.run().value
        return landscape.regret(value), len(simulation.world.configurations)


def rows(
    contenders: Sequence[str], tasks: Sequence[str], found: Sequence[tuple[float, int]]
) -> list[dict[str, Any]]:
    """By task and contender the regret, and its difference to the first one's, paired by seed.

    Args:
        contenders: Their names.
        tasks: The names of the tasks.
        found: The results by task, seed and contender.
    """
    result = []
    each = len(found) // len(tasks)
    for index, task in enumerate(tasks):
        mine = found[index * each : (index + 1) * each]
        first = [regret for regret, _ in mine[:: len(contenders)]]
        for place, contender in enumerate(contenders):
            some = mine[place :: len(contenders)]
            regret = Estimate.of([value for value, _ in some])
            gap = Estimate.of([a - b for (a, _), b in zip(some, first, strict=True)])
            result.append({
                "task": task, "contender": contender, "regret": regret.mean,
                "error": regret.error, "difference": gap.mean, "difference_error": gap.error,
                "trials": statistics.fmean(trials for _, trials in some),
            })  # fmt: skip
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate; print a table and write JSON."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.predicted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", action="append", choices=TASKS, help="again; both by default")
    parser.add_argument("--contender", action="append", help="POLICY+SAMPLER; again")
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--speedup", type=float, default=1.2, help="of a trial on two slots")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    given = parser.parse_args(arguments)
    tasks, contenders = given.task or TASKS, given.contender or CONTENDERS
    for contender in contenders:
        if contender.partition("+")[2] not in SAMPLERS:
            parser.error(f"{contender} names no sampler: add one of +{', +'.join(SAMPLERS)}")
    studies = [
        PredictedStudy(contender, task, seed, given.deadline, given.slots, given.speedup)
        for task in tasks
        for seed in range(given.seeds)
        for contender in contenders
    ]
    result = rows(contenders, tasks, list(simulate_all(studies, given.jobs)))
    shown = Table("task", "contender", "regret", "to the first", "trials")
    for row in result:
        shown.add_row(
            row["task"], row["contender"], with_error(row["regret"], row["error"], ".3f"),
            with_error(row["difference"], row["difference_error"], "+.3f"), f"{row['trials']:.0f}",
        )  # fmt: skip
    screen(piped=100).print(shown)
    write_json(given.json, {"rows": result, "machine": machine()})


if __name__ == "__main__":
    main()
