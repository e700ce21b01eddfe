"""``python -m benchmarks.backtest [--data DIR] [--quick] [--json F]``: accuracy of forecasts.

Studies are simulated on recorded curves under the default policy. At a quarter, half and three
quarters of the time, these are forecast from what is known then, and compared with the recording:
the value of each trial at twice its steps and at its end, the best value of the study at the
deadline, and with ``--draws`` the gain from 50 % more time or twice as many slots. A calibrated
band of 80 % contains 80 % of the outcomes.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.accuracy.runs import STEP_SECONDS, scaled
from benchmarks.headlines.pictures import picture
from benchmarks.measuring import machine, output_file, screen, write_json
from benchmarks.studies import simulate_all
from optuna_deadline.forecasting.curve_priors import LEVELS
from optuna_deadline.forecasting.learning_curves import learn_doublings
from optuna_deadline.history.forecast import forecast, known_curves
from optuna_deadline.history.reader import HistoryReader
from optuna_deadline.history.records import History
from optuna_deadline.policies import Policy, make_policy
from optuna_deadline.scenarios.comparison import Scenario
from optuna_deadline.scenarios.futures import Change
from optuna_deadline.simulation import Cluster, Simulation
from optuna_deadline.simulation.tables import choose, draw
from optuna_deadline.simulation.worker import SimulatedWorker
from optuna_deadline.simulation.workload import Workload
from optuna_deadline.study.terms import Terms

PARTS = (0.25, 0.5, 0.75)
POLICY = "adaptive_halving"
OVERHEAD = 0.5  #: overhead of a start, in steps
MORE_TIME = 0.5  #: added share of the time in the what-if
TABLES = 4  # tables of a family with --quick
AGAIN, END, STUDY = "a doubling ahead", "at the end of its training", "the best at the deadline"
LATER, MORE = "the best with half as much time again", "the best with twice as many slots"
_LOW, _HIGH = LEVELS.index(0.1), LEVELS.index(0.9)


@dataclass(frozen=True)
class ForecastOutcome:
    """One forecast and its outcome, in units of the distance from the best to the median value.

    Attributes:
        what: The kind of forecast.
        part: The share of the time that had passed.
        held: By level of :data:`LEVELS`, whether the outcome was at or below it.
        within: Whether the outcome was in the band of 80 %.
        error: The error of the median.
        unmoved: The error of a forecast without change.
    """

    what: str
    part: float
    held: tuple[bool, ...]
    within: bool
    error: float
    unmoved: float


@dataclass(frozen=True)
class Case:
    """One study: a table, the order of its configurations, slots, and whole trainings of time."""

    table: str
    seed: int
    slots: int
    trainings: int
    data: Path | None
    draws: int = 0

    def run(self) -> list[ForecastOutcome]:
        """All forecasts and their outcomes."""
        workload, deadline = self.workload, self.deadline
        histories, value = self.simulate(PARTS)
        outcomes = [
            one for part, history in histories for one in _of_trials(part, history, workload)
        ]
        for part, history in histories:
            expected = forecast(history)
            if value is None or expected.best is None:
                continue
            outcomes.append(_judge(STUDY, part, expected.levels, expected.best, value, workload))
            changes = (
                (LATER, Change(seconds=MORE_TIME * deadline)),
                (MORE, Change(slots=self.slots)),
            )
            for what, change in changes if self.draws else ():
                asked = Scenario(history, change, draws=self.draws, seed=self.seed)
                answer = asked.answer(list(asked.pairs(math.inf)))
                came = self._change(part * deadline, change)
                if answer.changed is not None and came is not None:
                    levels = answer.changed.levels
                    outcomes.append(_judge(what, part, levels, expected.best, came, workload))
        return outcomes

    def simulate(self, parts: Sequence[float]) -> tuple[list[tuple[float, History]], float | None]:
        """What was known after increasing shares of the time, and the best value at the end."""
        simulation = self._begin()
        parameters = {"max_resource": self.workload.steps}
        end = self.deadline
        terms = Terms(1, "study", "maximize", 0.0, end, end, POLICY, parameters, 0.0)
        reader = HistoryReader(simulation.world.table, terms)
        histories = []
        for part in parts:
            simulation.run_until(part * end)
            histories.append((part, reader.read()))
        return histories, simulation.run().value

    @cached_property
    def workload(self) -> Workload:
        """The table, in the case's order."""
        return scaled(draw(self.table, self.seed, steps=81, data=self.data))

    @property
    def deadline(self) -> float:
        """The seconds of the study."""
        return self.trainings * self.workload.full_seconds / self.slots

    def _begin(self) -> Simulation:
        cluster = Cluster(slots=self.slots, startup=OVERHEAD * STEP_SECONDS - 1.0, stop=1.0)
        return Simulation(
            _policy(self.workload),
            self.workload,
            cluster,
            deadline=self.deadline,
            seed=self.seed,
        )

    def _change(self, instant: float, change: Change) -> float | None:
        """The outcome of a study that is changed at a time."""
        simulation = self._begin()
        world = simulation.world
        simulation.run_until(instant)
        world.deadline += change.seconds
        with world.table.writing() as tx:
            tx.run("UPDATE @study SET deadline = :end WHERE study_id = :study", end=world.deadline)
        if change.slots:
            policy = _policy(world.workload)
            SimulatedWorker(world, "more", 0, policy, slots=change.slots).start()
        for worker in world.workers.values():
            worker.wake_all()  # it plans again and reads its orders again
        return simulation.run().value


def _policy(workload: Workload) -> Policy:
    return make_policy(POLICY, {"max_resource": workload.steps})


def _of_trials(part: float, history: History, workload: Workload) -> Iterable[ForecastOutcome]:
    curves = known_curves(history)
    model = learn_doublings(curves.values())
    for number, curve in curves.items():
        whole = workload.curves[workload.configuration(number)]
        now = round(curve.steps[-1])
        for what, step in ((AGAIN, 2 * now), (END, len(whole))):
            if curve.doublings > 0 and now < step <= len(whole):
                came = max([curve.best[-1], *(score for score in whole[:step] if score == score)])
                levels = model.quantiles(curve, step)
                yield _judge(what, part, levels, curve.best[-1], came, workload)


def _judge(
    what: str, part: float, levels: Sequence[float], now: float, came: float, workload: Workload
) -> ForecastOutcome:
    peaks = [workload.peak(number) for number in range(len(workload.curves))]
    reach = max(workload.best - statistics.median(peaks), 1e-12)
    middle = levels[LEVELS.index(0.5)]
    return ForecastOutcome(
        what,
        part,
        tuple(came <= level for level in levels),
        levels[_LOW] <= came <= levels[_HIGH],
        min(1.0, abs(came - middle) / reach),
        min(1.0, abs(came - now) / reach),
    )


def figures(outcomes: Sequence[tuple[str, ForecastOutcome]]) -> list[dict[str, Any]]:
    """A row for each family, kind of forecast and share of the time."""
    groups: dict[tuple[str, str, float], list[ForecastOutcome]] = defaultdict(list)
    for family, one in outcomes:
        groups[family, one.what, one.part].append(one)
    return [
        {
            "family": family,
            "what": what,
            "part": part,
            "forecasts": len(some),
            "within_80": statistics.fmean(one.within for one in some),
            "error": statistics.fmean(one.error for one in some),
            "error_if_nothing_moved": statistics.fmean(one.unmoved for one in some),
            "held": [statistics.fmean(one.held[i] for one in some) for i in range(len(LEVELS))],
        }
        for (family, what, part), some in sorted(groups.items())
    ]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows."""
    table = Table("family", "forecast", "at", "of", "in the 80 % band", "error", "no change")
    for row in rows:
        table.add_row(
            row["family"],
            row["what"],
            f"{row['part']:.0%}",
            f"{row['forecasts']:,}",
            f"{row['within_80']:.0%}",
            f"{row['error']:.3f}",
            f"{row['error_if_nothing_moved']:.3f}",
        )
    screen(piped=110).print(table)


def draw_calibration(outcomes: Sequence[tuple[str, ForecastOutcome]], path: Path) -> None:
    """Draw how often outcomes were at or below each level, against the level."""
    families = sorted({family for family, _ in outcomes})
    with picture(path, len(families), (3.6, 3.6)) as panels:
        for axes, family in zip(panels, families, strict=True):
            axes.plot([0, 1], [0, 1], color="#777777", linewidth=1)
            for what, colour in ((AGAIN, "#0072B2"), (END, "#D55E00"), (STUDY, "#009E73")):
                some = [one for name, one in outcomes if name == family and one.what == what]
                if some:
                    held = [statistics.fmean(o.held[i] for o in some) for i in range(len(LEVELS))]
                    axes.plot(LEVELS, held, "o-", color=colour, label=what)
            axes.set_title(family)
            axes.set_xlabel("forecast probability of no more")
        panels[0].set_ylabel("how often no more came")
        panels[0].legend(fontsize=7)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, forecast, compare, write."""
    parser = argparse.ArgumentParser(prog="benchmarks.backtest", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of recorded curves")
    parser.add_argument("--family", action="append", help="one kind or table of them; again")
    parser.add_argument("--seeds", type=int, default=1, help="orders of each table")
    parser.add_argument("--quick", action="store_true", help="8 slots, 4 tables of each family")
    parser.add_argument(
        "--draws", type=int, default=0, help="draws of each what-if; by default none is asked"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    parser.add_argument("--picture", type=output_file, help="file for the calibration")
    given = parser.parse_args(arguments)
    families = choose(given.family or ([] if given.data else ["recorded"]), given.data)
    slots, trainings = ((8,), (8, 16)) if given.quick else ((4, 8, 16), (4, 8, 16, 32))
    cases = [
        (family, Case(table, seed, count, time, given.data, given.draws))
        for family, tables in families.items()
        for table in (tables[:TABLES] if given.quick else tables)
        for seed, count, time in product(range(given.seeds), slots, trainings)
    ]
    found = simulate_all([case for _, case in cases], given.jobs)
    outcomes = [
        (family, one) for (family, _), some in zip(cases, found, strict=True) for one in some
    ]
    rows = figures(outcomes)
    show(rows)
    write_json(given.json, {"levels": LEVELS, "rows": rows, "machine": machine()})
    if given.picture is not None:
        draw_calibration(outcomes, given.picture)


if __name__ == "__main__":
    main()
