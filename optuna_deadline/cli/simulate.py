"""``optuna-deadline simulate``: compare policies on learning curves, in virtual time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from optuna_deadline._garbage import collect_seldom
from optuna_deadline._numbers import format_count
from optuna_deadline.cli.app import command, console
from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies import DEFAULT
from optuna_deadline.simulation.cluster import ANTI, LINEAR, SUBLINEAR, Cluster
from optuna_deadline.simulation.comparison import (
    Case,
    PolicyRow,
    paired_cases,
    run_all,
    summarise,
)
from optuna_deadline.simulation.study import read_deadline
from optuna_deadline.simulation.tables import choose, load_speedups
from optuna_deadline.simulation.workload import FAMILIES
from optuna_deadline.study import policy_choice

T = TypeVar("T")

_SECONDS = 10.0  # between two lines of progress
_SPEEDUPS = {"linear": LINEAR, "sublinear": SUBLINEAR, "anti": ANTI}
_PIPED = 100  #: columns if the output is not a terminal
_COMPARED = [DEFAULT, "asha_promote", "hyperband", "fifo"]


@command
def simulate(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy as for run, such as hypersched:recharge=8; again for another. "
            f"By default {', '.join(_COMPARED)}."
        ),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Learning curves, again for more: {', '.join(FAMILIES)}; digits, recorded by "
            "this project; with --data a kind as taskset, or one table as lcbench/3945."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of recorded data.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the host.")] = 8,
    deadline: Annotated[
        str, typer.Option(help="4x: this many whole trainings on one slot; or 2h, 30m.")
    ] = "4x",
    seeds: Annotated[int, typer.Option(min=1, help="Studies of each workload.")] = 10,
    steps: Annotated[
        int, typer.Option(min=1, help="Report steps of a whole training of generated curves.")
    ] = 81,
    scaling: Annotated[
        str,
        typer.Option(
            help="True speed of k slots: linear, sublinear (ResNet-50's), anti; with --data the "
            "name of a model whose step times are there."
        ),
    ] = "sublinear",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every result to this file.")
    ] = None,
) -> None:
    """Compare policies on learning curves, generated or recorded, without a GPU."""
    policies = list(dict.fromkeys(policy or _COMPARED))
    for name in policies:
        policy_choice.make(name, {})
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise DeadlineError(f"There is no folder {json_file.parent}; create it first.")
    seconds, relative = read_deadline(deadline)
    cluster = Cluster(slots=slots, speedup=_read_scaling(scaling, data))
    families = choose(family or [], data)
    setting = Case("", "", 0, cluster, seconds, relative, steps, data=data)
    everything = [workload for workloads in families.values() for workload in workloads]
    cases = paired_cases(setting, policies, everything, seeds)
    collect_seldom()
    progress = track(
        run_all(cases, jobs),
        f"Simulating {len(cases)} studies",
        total=len(cases),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    outcomes = list(_in_lines(progress, len(cases)))
    screen = Console()
    rows: list[PolicyRow] = []
    runs: list[dict[str, Any]] = []
    for name, workloads in families.items():
        count = len(workloads) * seeds * len(policies)
        mine, outcomes = outcomes[:count], outcomes[count:]
        rows += (found := summarise(policies, mine, name))
        several = f"{len(workloads)} workloads, " if len(workloads) > 1 else ""
        counts = [format_count(slots, "slot"), format_count(seeds, "seed")]
        title = f"{name}, {several}{counts[0]}, deadline {deadline}, {counts[1]}"
        screen.print(_table(title, found), width=None if screen.is_terminal else _PIPED)
        for case, outcome in zip(cases[len(runs) :], mine, strict=False):
            named = {"family": name, "policy": case.policy, "seed": case.seed}
            runs.append({**named, **asdict(outcome)})
    if json_file is not None:
        figures = {"rows": [asdict(row) for row in rows], "runs": runs}
        json_file.write_text(json.dumps(figures, indent=2) + "\n")


def _in_lines(outcomes: Iterable[T], total: int) -> Iterator[T]:
    """Print a line from time to time if the output is not a terminal."""
    printed = time.monotonic()
    for done, outcome in enumerate(outcomes, 1):
        if not console.is_terminal and time.monotonic() - printed > _SECONDS:
            printed = time.monotonic()
            console.print(f"Simulated {done} of {total} studies.", highlight=False)
        yield outcome


def _read_scaling(name: str, data: Path | None) -> Speedup:
    if name in _SPEEDUPS:
        return _SPEEDUPS[name]
    recorded = load_speedups(data) if data is not None else {}
    if name in recorded:
        return recorded[name]
    there = ", ".join([*_SPEEDUPS, *recorded])
    hint = "" if data is not None else "; --data DIR may bring more"
    raise DeadlineError(f"There is no scaling {name!r}; there are {there}{hint}.")


def _table(title: str, rows: list[PolicyRow]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    names = ("regret", "to the first", "choice", "busy", "trials", "resizes")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        sign = "+" if row.difference is not None and row.difference.mean >= 0 else ""
        table.add_row(
            row.policy,
            str(row.regret),
            "" if row.difference is None else f"{sign}{row.difference}",
            f"{row.choice_regret.mean:.3f}",
            f"{row.utilisation:.0%}",
            f"{row.trials:.0f}",
            f"{row.resizes:.1f}",
        )
    return table
