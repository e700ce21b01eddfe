"""``optuna-deadline simulate``: policies side by side on generated curves, in virtual time."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from optuna_deadline.cli.app import command, console
from optuna_deadline.deadlines import parse_deadline
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import DEFAULT, known_policies
from optuna_deadline.simulation.cluster import ANTI, LINEAR, SUBLINEAR, Cluster
from optuna_deadline.simulation.comparison import Case, Row, run_all, summarise
from optuna_deadline.simulation.families import FAMILIES

Family = Enum("Family", {name: name for name in FAMILIES}, type=str)  # type: ignore[misc]
_POWER_LAW = Family("power-law")


class Scaling(str, Enum):
    """How fast a gang is."""

    linear = "linear"
    sublinear = "sublinear"
    anti = "anti"


_SPEEDUPS = {Scaling.linear: LINEAR, Scaling.sublinear: SUBLINEAR, Scaling.anti: ANTI}
_PIPED = 100  #: columns where nobody says how many there are
_COMPARED = [DEFAULT, "asha_promote", "hyperband", "fifo"]


@command
def simulate(
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"A policy; again for another. By default {', '.join(_COMPARED)}."),
    ] = None,
    family: Annotated[Family, typer.Option(help="Family of learning curves.")] = _POWER_LAW,
    slots: Annotated[int, typer.Option(min=1, help="Slots of one host.")] = 8,
    deadline: Annotated[
        str, typer.Option(help="4x: so many whole trainings on one slot; or 2h, 30m.")
    ] = "4x",
    seeds: Annotated[int, typer.Option(min=1, help="Workloads to draw.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Report steps of a whole training.")] = 81,
    reduction_factor: Annotated[int, typer.Option(help="A rung keeps one in this many.")] = 4,
    scaling: Annotated[
        Scaling, typer.Option(help="True speed of k slots; sublinear is ResNet-50's.")
    ] = Scaling.sublinear,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every outcome to this file.")
    ] = None,
) -> None:
    """Compare policies on generated learning curves, without a GPU and in seconds."""
    policies = list(dict.fromkeys(policy or _COMPARED))
    for name in policies:
        if name not in known_policies():
            known = ", ".join(known_policies())
            raise DeadlineError(f"There is no policy {name!r}; there are {known}.")
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise DeadlineError(f"There is no folder {json_file.parent}; make it first.")
    seconds, relative = _read_deadline(deadline)
    cluster = Cluster(slots=slots, speedup=_SPEEDUPS[scaling])
    cases = [
        Case(
            name, family.value, seed, cluster, seconds, relative, steps,
            (("reduction_factor", reduction_factor),),
        )
        for seed in range(seeds)
        for name in policies
    ]  # fmt: skip
    progress = track(
        run_all(cases, jobs),
        f"Simulating {len(cases)} studies",
        total=len(cases),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    outcomes = list(progress)
    rows = summarise(policies, outcomes)
    title = f"{family.value}, {slots} slots, deadline {deadline}, {seeds} seeds"
    screen = Console()
    screen.print(_table(title, rows), width=None if screen.is_terminal else _PIPED)
    if json_file is not None:
        runs = [
            {"policy": case.policy, "seed": case.seed, **asdict(outcome)}
            for case, outcome in zip(cases, outcomes, strict=True)
        ]
        figures = {"title": title, "rows": [asdict(row) for row in rows], "runs": runs}
        json_file.write_text(json.dumps(figures, indent=2) + "\n")


def _read_deadline(text: str) -> tuple[float, bool]:
    """Seconds, or whole trainings and True."""
    if found := re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)x", text.strip()):
        if float(found[1]) > 0:
            return float(found[1]), True
        raise DeadlineError("The deadline 0x leaves no time; give 1x or more.")
    given = parse_deadline(text)
    if given.duration is None:
        raise DeadlineError(f"{text!r} is an instant; virtual time needs a duration as 4x or 2h.")
    return given.duration, False


def _table(title: str, rows: list[Row]) -> Table:
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
