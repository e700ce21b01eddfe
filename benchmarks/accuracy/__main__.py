"""``python -m benchmarks.accuracy [--data DIR] [--quick] [--json F]``: regret at the deadline.

Every policy has the same configurations in the same order. Without a folder of recorded data the
project's own recording is used.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy import pictures, summary
from benchmarks.accuracy.peers import PEERS
from benchmarks.accuracy.runs import ORACLE, POLICIES, SEARCHES, Case, Setting
from benchmarks.accuracy.summary import Run
from benchmarks.measuring import machine, output_file, write_json
from benchmarks.studies import simulate_all
from optuna_deadline.simulation.sources import choose

_SLOTS, _TRAININGS, _OVERHEADS = (4, 8, 16), (4, 8, 16, 32), (0.5, 0.05)
_TABLES = 3  # of a family, where it is to be quick
_REFERENCE = "hypersched"
_PIPED = 140  #: columns where nobody says how many there are


def measure(
    families: dict[str, list[str]],
    settings: Sequence[Setting],
    policies: Sequence[str],
    *,
    seeds: Sequence[int],
    data: Path | None,
    jobs: int = 1,
) -> list[Run]:
    """Simulate every policy on every table, seed and setting."""
    studies = [
        (family, table, seed, setting)
        for family, tables in families.items()
        for table in tables
        for seed in seeds
        for setting in settings
    ]
    cases = [
        (family, Case(policy, table, seed, setting, data))
        for family, table, seed, setting in studies
        for policy in policies
    ]
    regrets = simulate_all([case for _, case in cases], jobs)
    return [
        Run(case, family, regret) for (family, case), regret in zip(cases, regrets, strict=True)
    ]


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    """What is written: means, parts, paired differences, and every study."""
    return {
        "mean_regret": summary.mean_regret(runs),
        "per_family": summary.per(runs, lambda run: run.family),
        "per_trainings": summary.per(runs, lambda run: run.case.setting.trainings),
        "per_slots": summary.per(runs, lambda run: run.case.setting.slots),
        "per_overhead": summary.per(runs, lambda run: run.case.setting.overhead),
        f"difference_to_{_REFERENCE}": summary.differences(runs, _REFERENCE),
        "wins": summary.wins(runs),
        "rows": [
            {
                "policy": run.case.policy,
                "family": run.family,
                "table": run.case.table,
                "seed": run.case.seed,
                "slots": run.case.setting.slots,
                "trainings": run.case.setting.trainings,
                "overhead": run.case.setting.overhead,
                "regret": run.regret,
            }
            for run in runs
        ],
    }


def show(result: dict[str, Any]) -> None:
    """Print regrets by family and by deadline, the best policy first."""
    families, deadlines = result["per_family"], result["per_trainings"]
    table = Table(
        "policy", "mean", *families, *(f"{count}x" for count in deadlines), f"to {_REFERENCE}"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    differences = result[f"difference_to_{_REFERENCE}"]
    for policy, mean in sorted(result["mean_regret"].items(), key=lambda item: item[1]):
        parts = [*families.values(), *deadlines.values()]
        difference, error = differences[policy]["mean"], differences[policy]["error"]
        spread = f"{difference:+.3f}" + ("" if error is None else f" ±{error:.3f}")
        cells = (f"{part[policy]:.3f}" for part in parts)
        table.add_row(policy, f"{mean:.3f}", *cells, spread)
    screen = Console()
    (screen if screen.is_terminal else Console(width=_PIPED)).print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, print, write JSON and pictures."""
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of recorded curves")
    parser.add_argument("--family", action="append", help="one kind or table of them; again")
    parser.add_argument(
        "--policy",
        action="append",
        choices=[*POLICIES, ORACLE, *PEERS, *SEARCHES],
        metavar="NAME[+tpe|+deadline]",
        help="again; with a sampler that chooses",
    )
    parser.add_argument("--seeds", type=int, default=1, help="orders of each table")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--slots", type=int, action="append", help="again; 4, 8 and 16")
    parser.add_argument("--overhead", type=float, action="append", help="in steps, again; .5, .05")
    parser.add_argument(
        "--quick", action="store_true", help="8 slots, overhead .5, 3 tables of each family"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    parser.add_argument("--pictures", type=Path, help="folder for the pictures")
    given = parser.parse_args(arguments)
    families = choose(given.family or ([] if given.data else ["recorded"]), given.data)
    if given.quick:
        families = {name: tables[:_TABLES] for name, tables in families.items()}
    policies = list(dict.fromkeys([_REFERENCE, *(given.policy or [*POLICIES, ORACLE])]))
    slots = given.slots or ([8] if given.quick else _SLOTS)
    overheads = given.overhead or ([0.5] if given.quick else _OVERHEADS)
    settings = [Setting(*each) for each in product(slots, _TRAININGS, overheads)]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    runs = measure(families, settings, policies, seeds=seeds, data=given.data, jobs=given.jobs)
    result = figures(runs)
    show(result)
    write_json(given.json, {**result, "machine": machine()})
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
        pictures.against_deadline(runs, given.pictures / "accuracy.png")
        pictures.win_matrix(result["wins"], given.pictures / "accuracy_wins.png")


if __name__ == "__main__":
    main()
