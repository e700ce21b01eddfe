"""``python -m benchmarks.accuracy [--data DIR] [--quick] [--json F]``: regret at the deadline.

Every policy gets the same configurations in the same order. Without a folder of recorded data, the
project's own recording is used.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.accuracy import kept, pictures, summary
from benchmarks.accuracy.kept import Kept
from benchmarks.accuracy.peers import PEERS
from benchmarks.accuracy.runs import ORACLE, POLICIES, SEARCHES, Case, Setting
from benchmarks.accuracy.summary import Run
from benchmarks.measuring import machine, output_file, screen, with_error, write_json
from benchmarks.studies import simulate_all
from benchmarks.syne_tune.asking import SYNE_TUNE
from optuna_deadline.simulation.tables import choose

_SLOTS, _TRAININGS, _OVERHEADS = (4, 8, 16), (4, 8, 16, 32), (0.5, 0.05)
_TABLES = 3  # tables of a family with --quick
_REFERENCE = "hypersched"
_EVERY = 30.0  #: seconds between two times that rows are written


def measure(
    families: dict[str, list[str]],
    settings: Sequence[Setting],
    policies: Sequence[str],
    *,
    seeds: Sequence[int],
    data: Path | None,
    jobs: int = 1,
    known: Kept | None = None,
    syne_tune: str | None = None,
) -> Iterator[Run]:
    """Simulate every policy on every table, seed and setting, except known results."""
    known = known or Kept({})
    cases = [
        (family, Case(policy, table, seed, setting, data, syne_tune))
        for family, tables in families.items()
        for table in tables
        for seed in seeds
        for setting in settings
        for policy in policies
    ]
    unknown = simulate_all([case for _, case in cases if known.of(case) is None], jobs)
    for family, case in cases:
        before = known.of(case)
        yield Run(case, family, next(unknown) if before is None else before)


def figures(runs: Sequence[Run], reference: str) -> dict[str, Any]:
    """The results: means, ranks, paired differences, and every study.

    Ranks leave out the oracle and policies with a sampler.
    """

    def family(run: Run) -> str:
        return run.family

    def trainings(run: Run) -> int:
        return run.case.setting.trainings

    ordered = [run for run in runs if run.case.policy != ORACLE and "+" not in run.case.policy]
    return {
        "mean_regret": summary.mean_regret(runs),
        "per_family": summary.per(runs, family),
        "per_trainings": summary.per(runs, trainings),
        "per_slots": summary.per(runs, lambda run: run.case.setting.slots),
        "per_overhead": summary.per(runs, lambda run: run.case.setting.overhead),
        f"difference_to_{reference}": summary.differences(runs, reference),
        f"ratio_to_{reference}": summary.ratios(runs, reference),
        "differences_per_family": summary.differences_per(runs, reference, family),
        "differences_per_trainings": summary.differences_per(runs, reference, trainings),
        "ranks": summary.ranks(ordered),
        "left_out": summary.left_out(ordered),
        "losses": summary.losses(ordered, reference),
        "wins": summary.wins(runs),
        "rows": kept.rows(runs),
    }


def show(result: dict[str, Any], reference: str) -> None:
    """Print regrets by family and by deadline, the best policy first."""
    families, deadlines = result["per_family"], result["per_trainings"]
    times = (f"{count}x" for count in deadlines)
    table = Table("policy", "mean", *families, *times, f"to {reference}", "ratio")
    for column in table.columns[1:]:
        column.justify = "right"
    differences, ratios = result[f"difference_to_{reference}"], result[f"ratio_to_{reference}"]
    for policy, mean in sorted(result["mean_regret"].items(), key=lambda item: item[1]):
        parts = [*families.values(), *deadlines.values()]
        spread = _spread(differences[policy])
        cells = (f"{part[policy]:.3f}" for part in parts)
        table.add_row(policy, f"{mean:.3f}", *cells, spread, _share(ratios[policy]))
    wide = screen(piped=140)
    wide.print(table)
    left = Table("family", f"{reference}: regret", "place", "the others choose", "regret", "best",
                 "regret")  # fmt: skip
    for family, choice in result["left_out"].items():
        places = result["ranks"][family]
        place = f"{places[reference]} of {len(places)}" if reference in places else ""
        mine = f"{families[family][reference]:.3f}"
        left.add_row(family, mine, place, choice["chosen"], f"{choice['regret']:.3f}",
                     choice["best"], f"{choice['best_regret']:.3f}")  # fmt: skip
    if result["left_out"]:
        wide.print(left)
    lost = Table(title=f"where another policy is better than {reference}")
    for name in ("family", "deadline", "best", "its difference"):
        lost.add_column(name)
    for row in result["losses"]:
        lost.add_row(row["family"], f"{row['trainings']}x", row["best"], _spread(row))
    if result["losses"]:
        wide.print(lost)


def _spread(part: dict[str, Any]) -> str:
    return with_error(part["mean"], part["error"], "+.3f")


def _share(part: dict[str, float | None]) -> str:
    ratio = part["ratio"]
    return "" if ratio is None else with_error(ratio, part["error"], ".2f")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of recorded curves")
    parser.add_argument("--family", action="append", help="one kind or table of them; again")
    parser.add_argument(
        "--policy",
        action="append",
        choices=[*POLICIES, ORACLE, *PEERS, *SEARCHES, *SYNE_TUNE],
        metavar="NAME[+tpe|+deadline|+uniform|+earlier]",
        help="again; with a sampler that chooses",
    )
    parser.add_argument(
        "--reference", default=_REFERENCE, help="policy that the others are paired with"
    )
    parser.add_argument("--seeds", type=int, default=1, help="orders of each table")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--slots", type=int, action="append", help="again; 4, 8 and 16")
    parser.add_argument(
        "--trainings", type=int, action="append", help="until the deadline, again; 4, 8, 16, 32"
    )
    parser.add_argument("--overhead", type=float, action="append", help="in steps, again; .5, .05")
    parser.add_argument(
        "--quick", action="store_true", help="8 slots, overhead .5, 3 tables of each family"
    )
    parser.add_argument(
        "--take", type=Path, action="append", default=[], help="rows of an earlier run; again"
    )
    parser.add_argument("--syne-tune-python", help="of an environment with Syne Tune")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    parser.add_argument("--pictures", type=Path, help="folder for the pictures")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate; print the results, and write JSON and pictures."""
    given = _parser().parse_args(arguments)
    families = choose(given.family or ([] if given.data else ["recorded"]), given.data)
    if given.quick:
        families = {name: tables[:_TABLES] for name, tables in families.items()}
    slots = given.slots or ([8] if given.quick else _SLOTS)
    overheads = given.overhead or ([0.5] if given.quick else _OVERHEADS)
    settings = [
        Setting(*each) for each in product(slots, given.trainings or _TRAININGS, overheads)
    ]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    tables = kept.digests([one for some in families.values() for one in some], given.data)
    known = kept.take(given.take, tables)
    policies = given.policy or ([] if given.take else [*POLICIES, ORACLE])
    for policy in known.regrets:
        lacking = known.missing(policy, list(product(tables, seeds, settings)))
        if not lacking:
            policies.append(policy)
        elif policy not in policies:
            print(
                f"{policy} lacks {lacking} studies and is left out; --policy {policy} runs them."
            )
    policies = list(dict.fromkeys([given.reference, *policies]))
    runs: list[Run] = []
    written = time.monotonic()
    for run in measure(
        families, settings, policies, seeds=seeds, data=given.data, jobs=given.jobs, known=known,
        syne_tune=given.syne_tune_python,
    ):  # fmt: skip
        runs.append(run)
        if time.monotonic() > written + _EVERY:  # an interrupted run can be continued
            written = time.monotonic()
            write_json(given.json, {"rows": kept.rows(runs), "tables": tables})
    result = figures(runs, given.reference)
    show(result, given.reference)
    write_json(given.json, {**result, "tables": tables, "machine": machine()})
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
        pictures.against_deadline(runs, given.pictures / "accuracy.png")
        pictures.ranking(result, given.reference, given.pictures / "accuracy_ranking.png")
        pictures.win_matrix(result["wins"], given.pictures / "accuracy_wins.png")


if __name__ == "__main__":
    main()
