"""``python -m benchmarks.ranking [--data DIR] [--family F]``: what DeadlineSampler shows.

A sampler learns from the trials that it takes for the best. Studies are simulated under the
default policy. At a quarter, half and three quarters of the time their trials are ordered by

- ``forecast``: what :class:`~optuna_deadline.DeadlineSampler` shows,
- ``own rise``: each curve continued by its own last doubling,
- ``best report``: the best value so far,
- ``pruned``: TPE's order of pruned trials, the most steps first and then the best value.

The figure is the place in the order of their final values of the tenth that comes first: 0 for the
best trial, 1 for the worst. Differences are paired by study and are to the best report.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

from rich.table import Table

from benchmarks.backtest import PARTS, Case
from benchmarks.measuring import machine, output_file, screen, write_json
from benchmarks.studies import simulate_all
from optuna_deadline.forecasting.learning_curves import Curve, learn_doublings
from optuna_deadline.forecasting.reporting import prospects
from optuna_deadline.history.forecast import known_curves
from optuna_deadline.simulation.comparison import Estimate
from optuna_deadline.simulation.tables import choose
from optuna_deadline.simulation.workload import Workload

_FEWEST = 10  #: trials; TPE samples at random before it has as many
_GOOD = 0.1  #: the share of the trials that TPE learns from
_REFERENCE = "best report"

Curves = Mapping[int, Curve]


def _by_forecast(curves: Curves, steps: int) -> Mapping[int, float]:
    return prospects(curves, {}, horizon=steps)


def _by_own_rise(curves: Curves, steps: int) -> Mapping[int, float]:
    model = learn_doublings(curves.values())
    return {number: model.expect(curve, steps) for number, curve in curves.items()}


def _by_best_report(curves: Curves, _: int) -> Mapping[int, float]:
    return {number: curve.best[-1] for number, curve in curves.items()}


def _as_pruned(curves: Curves, _: int) -> Mapping[int, float]:
    order = sorted(curves, key=lambda number: (curves[number].steps[-1], curves[number].best[-1]))
    return {number: float(place) for place, number in enumerate(order)}


ORDERS: dict[str, Callable[[Curves, int], Mapping[int, float]]] = {
    "forecast": _by_forecast,
    "own rise": _by_own_rise,
    _REFERENCE: _by_best_report,
    "pruned": _as_pruned,
}


@dataclass(frozen=True)
class RankedStudy:
    """One study."""

    case: Case

    def run(self) -> dict[str, float] | None:
        """By order, the mean place of those that come first; None if it has too few trials."""
        places: dict[str, list[float]] = defaultdict(list)
        for _, history in self.case.simulate(PARTS)[0]:
            curves = known_curves(history)
            if len(curves) >= _FEWEST:
                for name, order in ORDERS.items():
                    scores = order(curves, self.case.workload.steps)
                    places[name].append(_place_of_first(scores, self.case.workload))
        return {name: fmean(some) for name, some in places.items()} or None


def _place_of_first(scores: Mapping[int, float], workload: Workload) -> float:
    first = sorted(scores, key=lambda number: -scores[number])[: math.ceil(_GOOD * len(scores))]
    ends = sorted(scores, key=lambda number: -workload.peak(workload.configuration(number)))
    return fmean(ends.index(number) / (len(ends) - 1) for number in first)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, order, print and write."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.ranking",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="folder of recorded curves")
    parser.add_argument("--family", action="append", help="one kind or table of them; again")
    parser.add_argument("--seeds", type=int, default=4, help="orders of each table")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    given = parser.parse_args(arguments)
    cases = [
        (family, RankedStudy(Case(table, seed, slots, trainings, given.data)))
        for family, tables in choose(given.family or [], given.data).items()
        for table, seed, slots, trainings in product(tables, range(given.seeds), (2, 8), (8, 16))
    ]
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    studies = simulate_all([study for _, study in cases], given.jobs)
    for (family, _), places in zip(cases, studies, strict=True):
        if places is not None:
            found[family].append(places)
    others = [name for name in ORDERS if name != _REFERENCE]
    table = Table("family", "studies", _REFERENCE, *others)
    for family, some in found.items():
        differences = (
            Estimate.of([one[name] - one[_REFERENCE] for one in some]) for name in others
        )
        reference = fmean(one[_REFERENCE] for one in some)
        table.add_row(family, str(len(some)), f"{reference:.3f}", *map(str, differences))
    screen(piped=110).print(table)
    write_json(given.json, {"studies": found, "machine": machine()})


if __name__ == "__main__":
    main()
