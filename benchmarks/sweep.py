"""``python -m benchmarks.sweep [--sweeps N] [--data DIR]``: trainings that all have to end.

Twenty trainings on eight slots: seeds, ablations, baselines of a paper. Their lengths differ, and
in most of them the batch doubles on the way, so that a step takes half as long from then on. Each
sweep is run by each policy, so differences are paired. With ``--data``, paces are also those of
LCBench's tables, epoch by epoch. The sweeps are drawn by seed and fitted to nothing.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import machine, output_file, write_json
from benchmarks.studies import simulate_all
from optuna_deadline.policies.registry import make_policy
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.comparison import Estimate
from optuna_deadline.simulation.study import Simulation
from optuna_deadline.simulation.tables import load
from optuna_deadline.simulation.workload import Workload

TRAININGS, STEPS, TRAINING = 20, 40, 3000.0  # a median training takes so many seconds
CLUSTER = Cluster(slots=8, startup=20.0, stop=2.0, save_every=600.0)
KINDS = ("alike", "unlike", "recorded")
#: By name, the policy and its parameters; the first is the reference.
POLICIES: dict[str, tuple[str, dict[str, float]]] = {
    "first come": ("fifo", {}),
    "round robin": ("round_robin", {}),
    "Shockwave": ("shockwave", {}),
    "pressure 0": ("shockwave", {"pressure": 0.0}),
    "window 1": ("shockwave", {"window": 1}),
}


def draw_sweep(kind: str, seed: int, data: Path | None) -> Workload:
    """The trainings of one sweep.

    Lengths are log-normal, with a spread of 0.2 ("alike") or 0.6 ("unlike"). Of the sweeps, three
    in four double the batch, all trainings after the same 20 to 60 % of the steps, up to a tenth.
    """
    rng = random.Random(f"{kind} {seed}")
    curve = tuple(step / STEPS for step in range(1, STEPS + 1))
    rows: list[list[float]] = []
    if kind == "recorded":
        assert data is not None
        tables = sorted(load(data / "lcbench_surrogate"), key=lambda table: table.name)
        table = rng.choice(tables).shuffled(seed)
        rows = [list(row[:STEPS]) for row in table.report_seconds[:TRAININGS]]
    else:
        spread = 0.2 if kind == "alike" else 0.6
        for _ in range(TRAININGS):
            pace = math.exp(rng.gauss(0.0, spread))
            rows.append([pace * math.exp(rng.gauss(0.0, 0.1)) for _ in range(STEPS)])
    change = rng.uniform(0.2, 0.6) * STEPS if rng.random() < 0.75 else STEPS
    for row in rows:
        begins = round(change * rng.uniform(0.9, 1.1))
        row[begins:] = [seconds / 2 for seconds in row[begins:]]
    scale = TRAINING / statistics.median(map(sum, rows))
    seconds = tuple(tuple(scale * one for one in row) for row in rows)
    means = tuple(statistics.fmean(row) for row in seconds)
    return Workload(kind, (curve,) * TRAININGS, means, report_seconds=seconds)


def least_makespan(works: Sequence[float], cluster: Cluster) -> float:
    """A bound: when the last of some trainings can end, with free preemption and resizes.

    To end by ``T`` a training of ``w`` seconds takes at least ``T * S^-1(w / T)`` slot-seconds,
    since S is concave. The bound is the smallest ``T`` at which all of that fits.
    """
    sizes = range(cluster.slots + 1)
    speeds = [cluster.speedup(size) for size in sizes]
    low, high = max(works) / speeds[-1], sum(works)
    for _ in range(60):
        middle = (low + high) / 2
        needed = np.interp([work / middle for work in works], speeds, sizes).sum()
        low, high = (low, middle) if needed <= cluster.capacity else (middle, high)
    return cluster.startup + high


@dataclass(frozen=True)
class Played:
    """One sweep under one policy."""

    makespan: float
    bound: float
    rho: float  #: the worst
    unfair: float  #: the share of trainings with a rho above 1.05
    completion: float  #: the mean
    restarts: int
    done: int


@dataclass(frozen=True)
class Case:
    """A sweep and a policy."""

    kind: str
    seed: int
    policy: str
    data: Path | None

    def run(self) -> Played:
        """Simulate the study."""
        workload = draw_sweep(self.kind, self.seed, self.data)
        works = [sum(row) for row in workload.report_seconds]
        name, parameters = POLICIES[self.policy]
        policy = make_policy(name, {"max_resource": STEPS, "n_trials": TRAININGS, **parameters})
        deadline = 10 * (sum(works) / CLUSTER.capacity + max(works))
        simulation = Simulation(policy, workload, CLUSTER, deadline=deadline)
        outcome = simulation.run()
        segments = simulation.world.table.segments()
        ends = {
            row.number: row.ended - simulation.world.started
            for row in segments
            if row.outcome == "complete" and row.ended is not None
        }
        fair = TRAININGS / CLUSTER.capacity
        rhos = [end / (fair * works[number]) for number, end in ends.items()]
        return Played(
            max(ends.values()), least_makespan(works, CLUSTER), max(rhos),
            sum(rho > 1.05 for rho in rhos) / len(rhos), statistics.fmean(ends.values()),
            outcome.resumes + outcome.resizes, len(ends),
        )  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """A policy's figures over all sweeps of a kind."""

    kind: str
    policy: str
    sweeps: int
    done: int
    makespan: float  #: in the mean of the ratios to the bound
    error: float  #: the standard error of it
    to_first: float  #: the mean of the ratios to the first policy
    rho_median: float
    rho_worst: float
    unfair: float
    completion: float  #: of the first policy's
    restarts: float  #: a training


def figures(kind: str, policy: str, mine: Sequence[Played], first: Sequence[Played]) -> Figures:
    """The figures of one row."""
    ratio = Estimate.of([one.makespan / one.bound for one in mine])
    pairs = list(zip(mine, first, strict=True))
    return Figures(
        kind, policy, len(mine), sum(one.done for one in mine), ratio.mean,
        ratio.error or 0.0,
        statistics.fmean(a.makespan / b.makespan for a, b in pairs),
        statistics.median(one.rho for one in mine), max(one.rho for one in mine),
        statistics.fmean(one.unfair for one in mine),
        statistics.fmean(a.completion / b.completion for a, b in pairs),
        statistics.fmean(one.restarts for one in mine) / TRAININGS,
    )  # fmt: skip


def main() -> None:
    """Parse the command line, run, and print one row per kind and policy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--sweeps", type=int, default=20, help="of each kind")
    parser.add_argument("--data", type=Path, help="a folder with recorded tables")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=output_file, help="write the figures to this file too")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if kind != "recorded" or given.data]
    sweeps = range(given.sweeps)
    cases = [Case(k, s, p, given.data) for k in kinds for s in sweeps for p in given.policies]
    played = dict(zip(cases, simulate_all(cases, given.jobs), strict=True))
    rows = []
    for kind in kinds:
        runs = {p: [played[Case(kind, s, p, given.data)] for s in sweeps] for p in given.policies}
        rows += [figures(kind, p, runs[p], runs[given.policies[0]]) for p in given.policies]
    _print(rows)
    if given.json:
        write_json(given.json, {"machine": machine(), "rows": [asdict(row) for row in rows]})


def _print(rows: Sequence[Figures]) -> None:
    table = Table(
        "trainings", "policy", "makespan / bound", "/ first", "rho, median / worst", "unfair",
        "mean completion", "restarts", "done",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row.sweeps} {row.kind}", row.policy, f"{row.makespan:.3f} ± {row.error:.3f}",
            f"{row.to_first:.3f}", f"{row.rho_median:.2f} / {row.rho_worst:.2f}",
            f"{row.unfair:.1%}", f"{row.completion:.3f}", f"{row.restarts:.2f}", str(row.done),
        )  # fmt: skip
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
