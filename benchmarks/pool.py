"""``python -m benchmarks.pool [--traces N] [--kinds K ...] [--jobs N] [--json F]``: shared pools.

Studies arrive, share a pool, and leave. The leader, the planners and the policies are those of
production, in virtual time. Each trace is run with each divider, so differences are paired.
Searches run AdaptiveHalving on generated curves; work is a number of trainings that all have to be
done, by a deadline or without one. The traces are drawn by seed and fitted to nothing.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import machine, output_file, write_json
from benchmarks.studies import simulate_all
from optuna_deadline.policies.api import Policy
from optuna_deadline.policies.registry import make_policy
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.comparison import Estimate
from optuna_deadline.simulation.pool import PoolSimulation, PoolStudy
from optuna_deadline.simulation.workload import Workload, generate

DIVIDERS = ("even", "fair")  #: the first is the reference
TRAINING = 3000.0  #: seconds of a whole training on one slot
STEPS = 27  #: reports of a training
FAMILIES = ("power-law", "climbing", "crossing")
#: By kind of trace: the shares of searches, and of searches and dated work.
KINDS = {
    "searches": (1.0, 1.0),
    "mixed": (0.5, 0.75),
    "dated": (0.0, 1.0),
    "undated": (0.0, 0.0),
    "weights": (0.5, 0.75),
    "alike": (1.0, 1.0),
}
CLUSTER = Cluster(slots=8, startup=29.0, stop=1.0, poll=10.0, reading=5.0, save_every=600.0)
_GAP = 3800.0  # seconds between two arrivals, in the mean
_MOST = 128  # configurations of a search


@dataclass(frozen=True)
class Drawn:
    """A study of a trace."""

    study: PoolStudy
    tasks: int  #: trainings that have to be done; 0 for a search

    @property
    def dated(self) -> bool:
        """Whether it has work with a deadline."""
        return self.tasks > 0 and math.isfinite(self.study.deadline)


def draw_trace(kind: str, seed: int, studies: int = 8) -> list[Drawn]:
    """The studies of one trace.

    A search has 0.7 to 8 trainings of time. Work has 2 to 12 trainings of 0.24 to 1.8 of the
    usual length; its deadline leaves it 1.3 to 5 times the time that it needs on the whole pool.
    """
    rng = random.Random(f"{kind} {seed}")
    searches, dated = KINDS[kind]
    now, found = 0.0, []
    for _ in range(studies):
        part = rng.random()
        weight = rng.choices([1.0, 2.0, 4.0], [0.6, 0.25, 0.15])[0] if kind == "weights" else 1.0
        if part < searches:
            trainings = 4.0 if kind == "alike" else math.exp(rng.uniform(*map(math.log, (0.7, 8))))
            curves = generate(
                rng.choice(FAMILIES), rng.randrange(10**6), configurations=_MOST, steps=STEPS,
                step_seconds=TRAINING / STEPS,
            )  # fmt: skip
            deadline = now + trainings * TRAINING
            found.append(Drawn(PoolStudy(curves, _search, now, deadline, weight), 0))
        else:
            found.append(_work(rng, now, part < dated, weight))
        now += rng.expovariate(1 / _GAP)
    return found


def _search() -> Policy:
    return make_policy("adaptive_halving", {"max_resource": STEPS, "n_trials": _MOST})


def _work(rng: random.Random, now: float, dated: bool, weight: float) -> Drawn:
    tasks, length = rng.randint(2, 12), TRAINING * rng.uniform(0.3, 1.5)
    seconds = [length * rng.uniform(0.8, 1.2) for _ in range(tasks)]
    curve = tuple(step / STEPS for step in range(1, STEPS + 1))
    workload = Workload("work", (curve,) * tasks, tuple(second / STEPS for second in seconds))
    least = max(max(seconds), sum(seconds) / CLUSTER.capacity)
    deadline = now + least * rng.uniform(1.3, 5.0) if dated else math.inf
    policy = partial(make_policy, "fifo", {"n_trials": tasks})
    return Drawn(PoolStudy(workload, policy, now, deadline, weight), tasks)


@dataclass(frozen=True)
class Result:
    """One study of a trace under one divider."""

    regret: float | None  #: of a search, relative to the spread of its configurations
    weight: float
    tasks: int
    dated: bool
    done: bool  #: whether all its work was done
    seconds: float  #: until its work was done, or it ended
    ended: float
    served: float


@dataclass(frozen=True)
class Played:
    """One trace under one divider."""

    results: tuple[Result, ...]
    handovers: int


@dataclass(frozen=True)
class Case:
    """A trace and a divider."""

    kind: str
    seed: int
    divider: str

    def run(self) -> Played:
        """Simulate the pool."""
        drawn = draw_trace(self.kind, self.seed)
        pool = PoolSimulation([one.study for one in drawn], self.divider, CLUSTER, interval=20.0)
        outcome = pool.run()
        rows = zip(drawn, outcome.studies, outcome.complete, outcome.served, strict=True)
        results = tuple(
            Result(
                _relative(one.study.workload, found.value) if not one.tasks else None,
                one.study.weight, one.tasks, one.dated, complete >= one.tasks,
                found.ended - one.study.arrival, found.ended, served,
            )
            for one, found, complete, served in rows
        )  # fmt: skip
        return Played(results, outcome.handovers)


def _relative(workload: Workload, value: float | None) -> float:
    """0 for the best configuration, 1 for the median one at full training, and at most 1."""
    median = statistics.median(workload.peak(n) for n in range(len(workload.curves)))
    regret = (workload.best - (median if value is None else value)) / (workload.best - median)
    return min(1.0, regret)


@dataclass(frozen=True)
class Figures:
    """A divider's figures over all traces of a kind; ratios and differences are to even shares."""

    kind: str
    divider: str
    traces: int
    regret: float | None
    weighted_regret: float | None
    difference: float | None
    error: float | None  #: the standard error of the difference
    missed: int
    due: int
    dated: float | None  #: completion
    undated: float | None
    makespan: float | None
    rho_median: float
    rho_worst: float
    handovers: float


def figures(kind: str, divider: str, mine: Sequence[Played], even: Sequence[Played]) -> Figures:
    """The figures of one row."""
    pairs = [(a, b) for p, q in zip(mine, even, strict=True) for a, b in _both(p, q)]
    searches = [(a, b) for a, b in pairs if a.regret is not None]
    regrets = [_mean_regret(played) for played in mine]
    differences = [
        x - y
        for x, y in zip(regrets, map(_mean_regret, even), strict=True)
        if x is not None and y is not None
    ]
    rhos = [max(_rho(a, b) for a, b in _both(p, q)) for p, q in zip(mine, even, strict=True)]
    known = [regret for regret in regrets if regret is not None]
    weights = sum(a.weight for a, _ in searches)
    gain = Estimate.of(differences) if differences else None
    return Figures(
        kind, divider, len(mine),
        statistics.fmean(known) if known else None,
        sum(a.weight * (a.regret or 0.0) for a, _ in searches) / weights if weights else None,
        None if gain is None else gain.mean,
        None if gain is None else gain.error,
        sum(a.dated and not a.done for a, _ in pairs),
        sum(a.dated for a, _ in pairs),
        _ratio([(a.seconds, b.seconds) for a, b in pairs if a.dated]),
        _ratio([(a.seconds, b.seconds) for a, b in pairs if a.tasks and not a.dated]),
        _ratio([(_last(p), _last(q)) for p, q in zip(mine, even, strict=True) if _last(q)]),
        statistics.median(rhos), max(rhos),
        _ratio([(p.handovers, q.handovers) for p, q in zip(mine, even, strict=True)]) or 1.0,
    )  # fmt: skip


def _both(mine: Played, even: Played) -> zip[tuple[Result, Result]]:
    return zip(mine.results, even.results, strict=True)


def _mean_regret(played: Played) -> float | None:
    found = [one.regret for one in played.results if one.regret is not None]
    return statistics.fmean(found) if found else None


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    whole = sum(b for _, b in pairs)
    return sum(a for a, _ in pairs) / whole if whole else None


def _last(played: Played) -> float:
    """When the last undated work was done."""
    undated = [one.ended for one in played.results if one.tasks and not one.dated]
    return max(undated, default=0.0)


def _rho(mine: Result, even: Result) -> float:
    """How much worse off a study is than with even shares: its time, or its slot-seconds."""
    if mine.tasks:
        return mine.seconds / even.seconds
    return even.served / max(1.0, mine.served)


def main() -> None:
    """Parse the command line, run, and print one row per kind and divider."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pool", description=__doc__)
    parser.add_argument("--traces", type=int, default=30, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=output_file, help="write the figures to this file too")
    given = parser.parse_args()
    cases = [Case(k, s, d) for k in given.kinds for s in range(given.traces) for d in DIVIDERS]
    played = dict(zip(cases, simulate_all(cases, given.jobs), strict=True))
    rows = []
    for kind in given.kinds:
        runs = {d: [played[Case(kind, s, d)] for s in range(given.traces)] for d in DIVIDERS}
        rows += [figures(kind, d, runs[d], runs[DIVIDERS[0]]) for d in DIVIDERS]
    _print(rows)
    if given.json:
        write_json(given.json, {"machine": machine(), "rows": [asdict(row) for row in rows]})


def _print(rows: Sequence[Figures]) -> None:
    table = Table(
        "traces", "divider", "mean regret", "weighted", "difference", "missed",
        "completion, dated / undated", "makespan", "worst rho, median / max", "hand-overs",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row.traces} {row.kind}", row.divider, _said(row.regret), _said(row.weighted_regret),
            "-" if row.difference is None else f"{row.difference:+.4f} ± {row.error or 0:.4f}",
            f"{row.missed} of {row.due}", f"{_said(row.dated, 3)} / {_said(row.undated, 3)}",
            _said(row.makespan, 3), f"{row.rho_median:.2f} / {row.rho_worst:.2f}",
            f"{row.handovers:.2f}",
        )  # fmt: skip
    Console(width=170).print(table)


def _said(number: float | None, digits: int = 4) -> str:
    return "-" if number is None else f"{number:.{digits}f}"


if __name__ == "__main__":
    main()
