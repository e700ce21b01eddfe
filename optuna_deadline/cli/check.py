"""``optuna-deadline check``: test that an objective trains the same when paused and moved."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import optuna
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from optuna_deadline.checking.moves import FEWEST, Check
from optuna_deadline.checking.rows import ROUNDING, CheckRow, exit_code
from optuna_deadline.checking.runs import TrainingRuns
from optuna_deadline.cli.app import (
    Json,
    ObjectivePlace,
    command,
    console,
    print_json,
)
from optuna_deadline.cli.option_groups import Only
from optuna_deadline.errors import DeadlineError
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.options import WorkerOptions
from optuna_deadline.rank.objective import source_of
from optuna_deadline.worker.devices import make_offer, own_cores, present_gpus

_PIPED = 140  #: columns if the output is not a terminal


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@command
def check(
    objective: ObjectivePlace,
    options: Annotated[WorkerOptions, Only(["gpu_ids", "hang_timeout"])],
    steps: Annotated[
        int | None,
        typer.Option(
            min=FEWEST,
            help="Steps of each training; by default one and a half short epochs, else 12.",
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Slots to move to; 1 tests only pauses.")] = 2,
    params: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Parameters, as in '{\"lr\": 0.1}'; the others are drawn once."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for parameters that are not given.")] = 0,
    gpus: Annotated[
        str | None,
        typer.Option(help="Number of GPUs, all, or none; all by default."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Relative difference that rounding may cause in a move.")
    ] = ROUNDING,
    as_json: Json = False,
) -> None:
    """Train a few steps undisturbed, paused and moved; exit with 1 on an unreported difference."""
    for number in _ENDING:
        signal.signal(number, _end)
    source = source_of(objective)
    devices = choose_devices(gpus, options.gpu_ids, slots)
    trial = fixed_trial(params, seed)
    with (
        _progress() as progress,
        TrainingRuns(
            source, trial, devices, hang_timeout=options.hang_timeout, on_step=progress.step
        ) as runs,
    ):
        looks = Check(
            runs, steps=steps, slots=slots, tolerance=tolerance, on_training=progress.begin
        )
        rows = list(looks.rows())
    if as_json:
        print_json([asdict(row) | {"result": row.result.value, "bad": row.bad} for row in rows])
    else:
        screen = SafeConsole()
        if not screen.is_terminal:
            screen = SafeConsole(width=_PIPED)
        screen.print(table_of(rows))
        print(f"Parameters: {json.dumps(trial.params)}")
    raise typer.Exit(exit_code(rows))


def _end(number: int, _: Any) -> None:
    """Exit on the first signal; later ones do not interrupt the removal of processes and files."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def fixed_trial(params: str | None, seed: int) -> optuna.Trial:
    """A trial whose parameters are given or sampled once, and the same in all trainings.

    Raises:
        DeadlineError: The parameters are not a JSON object.
    """
    try:
        given: Any = json.loads(params or "{}")
    except json.JSONDecodeError as error:
        raise DeadlineError(
            f"--params is not JSON ({error}): write it as '{{\"lr\": 0.1}}'."
        ) from None
    if not isinstance(given, dict):
        raise DeadlineError("--params must be one JSON object, as in '{\"lr\": 0.1}'.")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    study.enqueue_trial(given)
    return study.ask()


def choose_devices(gpus: str | None, gpu_ids: str | Sequence[int] | None, slots: int) -> list[str]:
    """The devices to train on: GPUs if there are enough, else one CPU core for each slot.

    Raises:
        DeadlineError: There are too few GPUs or cores.
    """
    if gpus is None and gpu_ids is None:
        present = present_gpus()
        if len(present) >= slots:
            return [f"gpu:{index}" for index in present[:slots]]
    elif gpus != "none":
        named = make_offer(gpus=gpus, gpu_ids=gpu_ids).devices
        if len(named) < slots:
            raise DeadlineError(
                f"A move to {slots} slots needs {slots} GPUs, and {len(named)} were named: name"
                " more, try pauses alone with --slots 1, or train on CPUs with --gpus none."
            )
        return named[:slots]
    there = own_cores()
    if there < slots:
        raise DeadlineError(
            f"A move to {slots} slots needs {slots} CPUs, and this process has {there}: check on a"
            " larger machine, or try pauses alone with --slots 1."
        )
    return [f"cpu:{index}" for index in range(slots)]


def table_of(rows: list[CheckRow]) -> Table:
    """The table of results for the terminal."""
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.add_column("training")
    table.add_column("result", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for row in rows:
        table.add_row(row.name, str(row), row.advice)
    return table


class _Shown:
    """Shows which training runs and its step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("loading the objective", steps="")
        self._steps = 0

    def begin(self, name: str, steps: int, number: int, total: int) -> None:
        self._steps = steps
        words = f"training {number} of {total}: {name}"
        self._progress.update(self._task, description=words, steps=f"of {steps} steps")

    def step(self, number: int) -> None:
        self._progress.update(self._task, steps=f"step {number} of {self._steps}")


@contextmanager
def _progress() -> Iterator[_Shown]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[steps]}"),
        TimeElapsedColumn(),
    )
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown:
        yield _Shown(shown)
