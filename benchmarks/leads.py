"""``python -m benchmarks.leads [--jobs N] [--json F]``: what a lead over the best tenth foretells.

Studies are simulated under the default policy on the project's own curves, recorded and generated.
By how many leads, of the best trial over the best tenth of them, did the best score rise from a
half, a quarter and an eighth of the time on until the deadline? Each family counts as much as any
other. The rows are ``LEADS`` of :mod:`optuna_deadline.forecasting.prior`.
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
from optuna_deadline.forecasting.curves import lead
from optuna_deadline.forecasting.levels import LEVELS
from optuna_deadline.history.forecast import known_curves
from optuna_deadline.simulation.sources import choose

PARTS = (0.125, 0.25, 0.5)
SEEDS = {"recorded": 6, "power-law": 3, "climbing": 3, "crossing": 3}  #: by family
SLOTS, TRAININGS = (4, 8, 16), (4, 8, 16, 32)


@dataclass(frozen=True)
class Rise:
    """By how many leads a best score rose, from a part of the time on."""

    part: float
    leads: float


@dataclass(frozen=True)
class Watched:
    """A study whose lead is looked at."""

    case: Case

    def run(self) -> list[Rise]:
        """Its rises; a study without a lead tells nothing."""
        histories, value = self.case.simulate(PARTS)
        found = []
        for part, history in histories:
            unit = lead(known_curves(history).values())
            if unit > 0 and value is not None:
                found.append(Rise(part, (value - history.improvements[-1].value) / unit))
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
        part: quantiles([(name, one.leads) for name, one in told if one.part == part])
        for part in sorted(PARTS, reverse=True)
    }
    table = Table("after", *(f"{level:.0%}" for level in LEVELS))
    for part, row in rows.items():
        table.add_row(f"{part:.1%}", *(f"{value:.2f}" for value in row))
    Console().print(table)
    write_json(given.json, {"levels": LEVELS, "rows": rows, "machine": machine()})


if __name__ == "__main__":
    main()
