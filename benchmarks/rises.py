"""``python -m benchmarks.rises [--jobs N] [--json F]``: how far best scores still rose.

Studies are simulated under the default policy on the project's own curves, recorded and generated.
How many times each of the three measures of a study (:mod:`optuna_deadline.forecasting.futures`)
did its best score rise from a part of the time on? Each family counts as much as any other. The
rows are ``RISES`` of :mod:`optuna_deadline.forecasting.learning_curves`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.backtest import Case
from benchmarks.measuring import machine, output_file, write_json
from benchmarks.studies import simulate_all
from optuna_deadline.forecasting.curve_priors import LEVELS, RISES
from optuna_deadline.forecasting.futures import measures
from optuna_deadline.history.forecast import course_of, known_curves
from optuna_deadline.simulation.tables import choose

PARTS = tuple(sorted(RISES))
SEEDS = {"recorded": 6, "power-law": 3, "climbing": 3, "crossing": 3}  #: by family
SLOTS, TRAININGS = (4, 8, 16), (4, 8, 16, 32)


@dataclass(frozen=True)
class Rise:
    """How many times each measure of a study its best score rose, after a part of its time."""

    part: float
    times: tuple[float, ...]


@dataclass(frozen=True)
class Watched:
    """A study whose rises are looked at."""

    case: Case

    def run(self) -> list[Rise]:
        """Of each part of the time at which there was anything to measure."""
        histories, value = self.case.simulate(PARTS)
        found = []
        for part, history in histories:
            curves = known_curves(history).values()
            if curves and value is not None:
                course = course_of(history)
                units = measures(curves, course, history.now - history.started)
                rise = value - course.best[-1]
                if all(units):
                    found.append(Rise(part, tuple([rise / unit for unit in units])))
        return found


def cases(seeds: int | None = None) -> list[tuple[str, Watched]]:
    """All studies with their families; of each family so many orders, or as usual."""
    return [
        (family, Watched(Case(table, seed, slots, trainings, None)))
        for family, usual in SEEDS.items()
        for tables in choose([family], None).values()
        for table in tables
        for seed, slots, trainings in product(range(seeds or usual), SLOTS, TRAININGS)
    ]


def quantiles(found: Sequence[tuple[str, float]]) -> list[float]:
    """At each of the levels, every family with the same weight."""
    names = [family for family, _ in found]
    values = np.array([value for _, value in found])
    weights = np.array([1 / names.count(family) for family in names])
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    at: list[float] = values[order][np.searchsorted(below, LEVELS)].tolist()
    return at


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(prog="benchmarks.leads", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    given = parser.parse_args(arguments)
    studies = cases()
    rises = simulate_all([case for _, case in studies], given.jobs)
    told = [
        (family, one) for (family, _), some in zip(studies, rises, strict=True) for one in some
    ]
    rows = {
        part: [
            quantiles([(name, one.times[which]) for name, one in told if one.part == part])
            for which in range(3)
        ]
        for part in sorted(PARTS, reverse=True)
    }
    table = Table("after", "of", *(f"{level:.0%}" for level in LEVELS))
    for part, some in rows.items():
        for name, row in zip(("lead", "lately", "of the best trial"), some, strict=True):
            table.add_row(f"{part:.1%}", name, *(f"{value:.2f}" for value in row))
    Console().print(table)
    write_json(given.json, {"levels": LEVELS, "rows": rows, "machine": machine()})


if __name__ == "__main__":
    main()
