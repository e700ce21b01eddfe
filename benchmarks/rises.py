"""``python -m benchmarks.rises [--jobs N] [--json F]``: how far best scores still rise.

Studies are simulated under the default policy on the project's own curves, recorded and generated.
The benchmark measures the rise of the best score from a share of the time on, relative to each of
the three measures of a study (:mod:`optuna_deadline.forecasting.futures`). Each family has the
same weight. The rows are ``RISES`` of :mod:`optuna_deadline.forecasting.learning_curves`.
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
    """The rise of a study's best score after a share of its time, relative to each measure."""

    part: float
    times: tuple[float, ...]


@dataclass(frozen=True)
class Watched:
    """A study whose rises are measured."""

    case: Case

    def run(self) -> list[Rise]:
        """The rises after each share of the time at which the study had reports."""
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
    """All studies with their families; ``seeds`` orders of each, or the default number."""
    return [
        (family, Watched(Case(table, seed, slots, trainings, None)))
        for family, usual in SEEDS.items()
        for tables in choose([family], None).values()
        for table in tables
        for seed, slots, trainings in product(range(seeds or usual), SLOTS, TRAININGS)
    ]


def quantiles(found: Sequence[tuple[str, float]]) -> list[float]:
    """The quantiles at each level, with the same weight for every family."""
    names = [family for family, _ in found]
    values = np.array([value for _, value in found])
    weights = np.array([1 / names.count(family) for family in names])
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    at: list[float] = values[order][np.searchsorted(below, LEVELS)].tolist()
    return at


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, print and write the results."""
    parser = argparse.ArgumentParser(prog="benchmarks.leads", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    given = parser.parse_args(arguments)
    studies = cases()
    rises = simulate_all([case for _, case in studies], given.jobs)
    measured = [
        (family, one) for (family, _), some in zip(studies, rises, strict=True) for one in some
    ]
    rows = {
        part: [
            quantiles([(name, one.times[which]) for name, one in measured if one.part == part])
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
