"""The time of `should_prune()`: DeadlinePruner beside three of Optuna's pruners.

One run measures all of them. Each repetition has a new random order, so that other load on the
machine affects all alike. In each repetition each pruner gets one new trial, which is the best, so
that no pruner stops early; the other trials are loaded before.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, SuccessiveHalvingPruner
from optuna.trial import TrialState

from benchmarks.bulk import add_trials, databases
from benchmarks.measuring import (
    Progress,
    Spread,
    StatementCounter,
    machine,
    output_file,
    quiet,
    write_json,
)
from optuna_deadline import DeadlinePruner
from optuna_deadline.allocation.database.opening import disconnect, open_table

OURS, MEDIAN = "DeadlinePruner", "MedianPruner"
STEPS = 50
STORAGES = ("sqlite", "postgresql")
_STEADY = (1_000, 32)  # trials and unfinished trials for the speed-up
_DEADLINE = "12h"


@dataclass(frozen=True)
class Size:
    """The size of the measurement."""

    trials: tuple[int, ...] = (100, 1_000, 10_000)
    unfinished: tuple[int, ...] = (0, 32, 128)
    repetitions: int = 7
    #: the steps at which the measured trial reports: even, and three rungs (1, 4 and 16)
    steps: tuple[int, ...] = (1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 43, 46, 50)
    seed: int = 0


QUICK = Size(repetitions=3, steps=(1, 7, 12, 16, 22, 28, 34, 40, 45, 50))


@dataclass
class Cell:
    """The calls of one pruner in one situation."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)

    def row(self, storage: str, trials: int, unfinished: int, pruner: str) -> dict[str, Any]:
        """The cell for JSON, with times in milliseconds."""
        return {
            "storage": storage,
            "trials": trials,
            "unfinished": unfinished,
            "pruner": pruner,
            "calls": len(self.wall),
            "max_statements": max(self.statements),
            "mean_statements": sum(self.statements) / len(self.statements),
            "wall_ms": asdict(Spread.of(self.wall)),
            "cpu_ms": asdict(Spread.of(self.cpu)),
        }


def measure(storages: tuple[str, ...], size: Size, progress: Progress) -> dict[str, Any]:
    """Measure all pruners on the given storages, and summarise."""
    rows: list[dict[str, Any]] = []
    with StatementCounter().listening() as counter:
        for storage in storages:
            with databases(storage, len(size.trials)) as urls:
                rows += _measure_storage(storage, urls, size, counter, progress)
    return summary(rows) | {"rows": rows, "machine": machine()}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The three main figures; None if their rows were not measured."""

    def wall(trials: int, pruner: str) -> float | None:
        wanted = ("postgresql", trials, _STEADY[1], pruner)
        for row in rows:
            if (row["storage"], row["trials"], row["unfinished"], row["pruner"]) == wanted:
                return float(row["wall_ms"]["median"])
        return None

    def ratio(above: float | None, below: float | None) -> float | None:
        return above / below if above and below else None

    return {
        "max_statements": max(r["max_statements"] for r in rows if r["pruner"] == OURS),
        "speedup_vs_median": ratio(wall(_STEADY[0], MEDIAN), wall(_STEADY[0], OURS)),
        "growth_10k_over_100": ratio(wall(10_000, OURS), wall(100, OURS)),
    }


def _measure_storage(
    name: str, urls: list[str], size: Size, counter: StatementCounter, progress: Progress
) -> Iterator[dict[str, Any]]:
    dice = random.Random(size.seed)
    situations = []
    for url, trials in zip(urls, size.trials, strict=True):
        progress.write_progress(f"{name}: loading {trials} trials")
        studies = _studies(url, f"prune-cost-{trials}")
        add_trials(studies[OURS], trials, steps=STEPS, state=TrialState.COMPLETE, seed=size.seed)
        situations.append((trials, studies))
    gc.collect()
    gc.freeze()  # else a collection over 10,000 trials would hit one of the pruners
    for before, unfinished in itertools.pairwise((0, *sorted(size.unfinished))):
        for _, studies in situations:
            more, seed = unfinished - before, size.seed + unfinished
            add_trials(studies[OURS], more, steps=STEPS, state=TrialState.RUNNING, seed=seed)
        cells = {(trials, pruner): Cell() for trials, _ in situations for pruner in studies}
        for repetition in range(size.repetitions):
            progress.write_progress(
                f"{name}: {unfinished} unfinished, repetition {repetition + 1}"
            )
            for trials, studies in dice.sample(situations, len(situations)):
                for pruner in dice.sample(list(studies), len(studies)):
                    _watch_one(studies[pruner], size.steps, cells[trials, pruner], counter)
        for (trials, pruner), cell in cells.items():
            yield cell.row(name, trials, unfinished, pruner)
    for _, studies in situations:
        disconnect(open_table(studies[OURS]))
        studies[OURS]._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def _studies(url: str, name: str) -> dict[str, optuna.Study]:
    """One study with each pruner; they share Optuna's cache, as trials of one process do."""
    pruners: dict[str, BasePruner] = {
        OURS: DeadlinePruner(_DEADLINE),
        MEDIAN: MedianPruner(),
        "SuccessiveHalvingPruner": SuccessiveHalvingPruner(),
        "HyperbandPruner": HyperbandPruner(),
    }
    sampler = optuna.samplers.RandomSampler(seed=0)
    storage = optuna.create_study(storage=url, study_name=name)._storage
    studies = {
        pruner: optuna.load_study(study_name=name, storage=storage, sampler=sampler, pruner=rule)
        for pruner, rule in pruners.items()
    }
    pruners[OURS].terms(studies[OURS])  # type: ignore[attr-defined]  # makes our tables
    return studies


def _watch_one(
    study: optuna.Study, steps: tuple[int, ...], cell: Cell, counter: StatementCounter
) -> None:
    trial = study.ask()
    trial.report(-1.0, 0)
    trial.should_prune()  # not counted: connections, and Hyperband's first look-up
    for step in steps:
        trial.report(-float(step), step)
        statements, cpu, wall = counter.count, time.thread_time(), time.perf_counter()
        pruned = trial.should_prune()
        cell.wall.append((time.perf_counter() - wall) * 1e3)
        cell.cpu.append((time.thread_time() - cpu) * 1e3)
        cell.statements.append(counter.count - statements)
        assert not pruned, f"{type(study.pruner).__name__} pruned the best trial"
    # Not COMPLETE, so that it does not count as one of the trials to compare with.
    study.tell(trial, state=TrialState.FAIL)


def _print(result: dict[str, Any]) -> None:
    print(
        f"{'storage':11}{'trials':>7}{'unfin.':>7}  {'pruner':25}{'SQL max':>8}{'mean':>6}", end=""
    )
    print(f"{'wall ms':>9}{'(10-90 %)':>17}{'CPU ms':>9}")
    for row in result["rows"]:
        wall = row["wall_ms"]
        print(
            f"{row['storage']:11}{row['trials']:7}{row['unfinished']:7}  {row['pruner']:25}"
            f"{row['max_statements']:8}{row['mean_statements']:6.1f}{wall['median']:9.2f}"
            f"{wall['p10']:8.2f} -{wall['p90']:7.2f}{row['cpu_ms']['median']:9.2f}"
        )
    for name in ("max_statements", "speedup_vs_median", "growth_10k_over_100"):
        value = result[name]
        print(f"{name}: {'not measured' if value is None else f'{value:.3g}'}")


def _picture(path: Path, rows: list[dict[str, Any]]) -> None:
    """A chart for each storage and number of unfinished trials, with the 10-90 % range."""
    from matplotlib.figure import Figure

    titles = list(dict.fromkeys(_title(row) for row in rows))
    pruners = list(dict.fromkeys(row["pruner"] for row in rows))
    down = math.ceil(len(titles) / 3)
    figure = Figure(figsize=(10, 2.8 * down + 0.4), layout="constrained")
    charts = figure.subplots(down, min(3, len(titles)), sharex=True, sharey=True, squeeze=False)
    for chart, title in zip(charts.flat, titles, strict=False):
        for pruner in pruners:
            mine = [row for row in rows if _title(row) == title and row["pruner"] == pruner]
            medians = [row["wall_ms"]["median"] for row in mine]
            below = [row["wall_ms"]["median"] - row["wall_ms"]["p10"] for row in mine]
            above = [row["wall_ms"]["p90"] - row["wall_ms"]["median"] for row in mine]
            across = [row["trials"] for row in mine]
            chart.errorbar(across, medians, yerr=(below, above), marker="o", label=pruner)
        chart.set(xscale="log", yscale="log", xlabel="trials", ylabel="should_prune(), wall ms")
        chart.set_title(title, size=10)
    figure.legend(*charts.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, format="svg")


def _title(row: dict[str, Any]) -> str:
    return f"{row['storage']}, {row['unfinished']} unfinished"


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.prune_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls; under two minutes")
    parser.add_argument("--storage", choices=(*STORAGES, "both"), default="both")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="where to write all figures"
    )
    parser.add_argument(
        "--picture", type=output_file, metavar="FILE", help="where to draw them, as SVG"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the values and of the order")
    for name in ("--trials", "--unfinished", "--repetitions"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    base = QUICK if given.quick else Size()
    size = Size(
        trials=(given.trials,) if given.trials else base.trials,
        unfinished=base.unfinished if given.unfinished is None else (given.unfinished,),
        repetitions=given.repetitions or base.repetitions,
        steps=base.steps,
        seed=given.seed,
    )
    quiet()
    progress = Progress()
    try:
        result = measure(STORAGES if given.storage == "both" else (given.storage,), size, progress)
    finally:
        progress.end()
    _print(result)
    write_json(given.json, result)
    if given.picture:
        _picture(given.picture, result["rows"])


if __name__ == "__main__":
    main()
