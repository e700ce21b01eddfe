"""DeadlineSampler around a sampler, against that sampler alone, on random searches.

A search has five parameters. Each configuration has a learning curve, which can be evaluated at
any step, with a limit that depends on all parameters, a rate, and the seconds of a step. Studies
run in virtual time: under DeadlinePruner, one trial after the other, or with ``--slots`` under
AdaptiveHalving, where a suggestion is replaced by the nearest of 1,500 drawn configurations that
is not trained yet. Regret is 0 for the final loss of the best of 20,000 random configurations and
1 for that of the median one.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, GPSampler, QMCSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from benchmarks.accuracy.search import NearestSearch
from benchmarks.measuring import Progress, machine, output_file, quiet, with_error, write_json
from optuna_deadline import DeadlinePruner, DeadlineSampler
from optuna_deadline.pruners._clock import ProcessClock
from optuna_deadline.samplers._prospects import Situation
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.comparison import Estimate
from optuna_deadline.simulation.study import simulate
from optuna_deadline.simulation.workload import Workload

STEPS = 30
TRAININGS = (3, 10, 30)  # whole trainings that fit before the deadline
_DIMENSIONS = 5
_DRAWN = 1500  # configurations of an elastic study's search
_STEP = 10.0  # mean seconds of its steps: a start takes half of one
_SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "TPE": lambda seed: TPESampler(seed=seed),
    "GP": lambda seed: GPSampler(seed=seed),
    "QMC": lambda seed: QMCSampler(seed=seed),
}


class Search:
    """A random search: the learning curve of each configuration, and the seconds of its steps.

    Args:
        seed: The seed of the search.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._best = rng.uniform(0.15, 0.85, _DIMENSIONS)
        self._weights = rng.dirichlet(np.ones(_DIMENSIONS)) * _DIMENSIONS
        self._tilt = rng.normal(0, 1, _DIMENSIONS)
        self._pace = rng.normal(0, 0.5, _DIMENSIONS)
        ends = self.losses(rng.uniform(size=(20_000, _DIMENSIONS)), STEPS)
        self.lowest, self.median = float(ends.min()), float(np.median(ends))

    def losses(self, x: np.ndarray, step: int) -> np.ndarray:
        """The losses of configurations, one per row, after a number of steps."""
        end = ((x - self._best) ** 2 * self._weights).sum(axis=-1)
        rate = 0.5 + 1 / (1 + np.exp(-(x - 0.5) @ self._tilt))
        return np.asarray(end + step**-rate)

    def step_seconds(self, x: np.ndarray) -> float:
        """The seconds of a step."""
        return float(np.exp((x - 0.5) @ self._pace))


@dataclass
class VirtualTime(ProcessClock):
    """The virtual clock of a study and the paces of its trials, for pruner and sampler."""

    deadline: float
    elapsed: float = 0.0
    step_seconds: dict[int, float] = field(default_factory=dict)
    _begun: dict[datetime, float] = field(default_factory=dict)

    def now(self) -> float:
        """Seconds since the study started."""
        return self.elapsed

    def since(self, moment: datetime) -> float:
        """Seconds since a trial started."""
        return self.elapsed - self._begun.get(moment, self.elapsed)

    def begin(self, trial: optuna.Trial) -> None:
        """Record the start of a trial."""
        assert trial.datetime_start is not None
        self._begun[trial.datetime_start] = self.elapsed

    def __call__(self, study: Study, trials: Sequence[FrozenTrial]) -> Situation:
        """The time left and the paces, for the sampler."""
        return Situation(self.deadline - self.elapsed, STEPS, self.step_seconds)


def regret(search: Search, sampler: str, seed: int, trainings: int, helped: bool) -> float:
    """The regret of one study."""
    clock = VirtualTime(deadline=float(trainings * STEPS))
    asked = _SAMPLERS[sampler](seed)
    study = optuna.create_study(
        pruner=DeadlinePruner(clock.deadline, max_resource=STEPS)._start(clock),
        sampler=DeadlineSampler(asked, look=clock) if helped else asked,
    )
    found = [search.median]

    def objective(trial: optuna.Trial) -> float:
        clock.begin(trial)
        x = np.array([trial.suggest_float(f"x{k}", 0, 1) for k in range(_DIMENSIONS)])
        clock.step_seconds[trial.number] = search.step_seconds(x)
        loss = math.inf
        for step in range(1, STEPS + 1):
            clock.elapsed += clock.step_seconds[trial.number]
            loss = float(search.losses(x, step))
            if clock.elapsed <= clock.deadline:
                found.append(loss)
            trial.report(loss, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    study.optimize(objective)
    return (min(found) - search.lowest) / (search.median - search.lowest)


def elastic_regret(
    search: Search, sampler: str, seed: int, trainings: int, helped: bool, slots: int
) -> float:
    """The regret of one elastic study."""
    asked = _SAMPLERS[sampler](seed)
    points = np.random.default_rng(seed).uniform(size=(_DRAWN, _DIMENSIONS))
    names = [f"x{k}" for k in range(_DIMENSIONS)]
    workload = Workload(
        f"search {seed}",
        tuple(zip(*(-search.losses(points, k + 1) for k in range(STEPS)), strict=True)),
        tuple(_STEP * search.step_seconds(point) for point in points),
        tuple(dict(zip(names, point, strict=True)) for point in points.tolist()),
    )
    found = simulate(
        "adaptive_halving",
        workload,
        Cluster(slots=slots),
        deadline=trainings * STEPS * statistics.fmean(workload.step_seconds) / slots,
        seed=seed,
        search=NearestSearch(
            workload,
            dict.fromkeys(names, FloatDistribution(0, 1)),
            lambda look: DeadlineSampler(asked, look=look) if helped else asked,
        ),
    ).value
    least = search.median if found is None else -found
    return (least - search.lowest) / (search.median - search.lowest)


def measure(
    samplers: Sequence[str],
    seeds: int,
    trainings: Sequence[int],
    slots: int | None,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Run all samplers, alone and inside DeadlineSampler, on the same searches and seeds."""
    rows = []
    for seed in range(seeds):
        search = Search(seed)
        for sampler in samplers:
            for count in trainings:
                progress.write_progress(
                    f"seed {seed + 1} of {seeds}, {sampler}, {count} trainings"
                )
                for helped in (False, True):
                    if slots is None:
                        found = regret(search, sampler, seed, count, helped)
                    else:
                        found = elastic_regret(search, sampler, seed, count, helped, slots)
                    row = {"sampler": sampler, "trainings": count, "helped": helped}
                    rows.append({**row, "seed": seed, "regret": found})
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print both regrets and their paired difference, which is below 0 if we help."""
    print("sampler  trainings   alone  helped  difference")
    cells = dict.fromkeys((row["sampler"], row["trainings"]) for row in rows)
    for sampler, count in cells:
        mine = [row for row in rows if (row["sampler"], row["trainings"]) == (sampler, count)]
        alone = [row["regret"] for row in mine if not row["helped"]]
        helped = [row["regret"] for row in mine if row["helped"]]
        more = Estimate.of([b - a for a, b in zip(alone, helped, strict=True)])
        print(
            f"{sampler:8} {count:9}  {statistics.fmean(alone):.4f}  {statistics.fmean(helped):.4f}"
            f"  {with_error(more.mean, more.error, '+.4f')}"
        )


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--samplers", default=",".join(_SAMPLERS), help="of TPE, GP and QMC")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trainings", default=",".join(map(str, TRAININGS)))
    parser.add_argument("--slots", type=int, help="of elastic studies; plain ones without it")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="for all figures")
    given = parser.parse_args(arguments)
    quiet()
    logging.getLogger("optuna_deadline").setLevel(logging.ERROR)
    trainings = [int(count) for count in given.trainings.split(",")]
    progress, began = Progress(), time.monotonic()
    try:
        rows = measure(given.samplers.split(","), given.seeds, trainings, given.slots, progress)
    finally:
        progress.end()
    print_table(rows)
    print(f"{time.monotonic() - began:.0f} s")
    write_json(given.json, {"machine": machine("numpy"), "rows": rows})


if __name__ == "__main__":
    main()
