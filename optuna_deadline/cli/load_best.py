"""``optuna-deadline load-best``: verify the best model's file and copy it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import write_atomically
from optuna_deadline.checkpoints.storage import Location, fetch, loading_code, name_of
from optuna_deadline.cli.app import Json, Storage, Study, command, print_json
from optuna_deadline.cli.databases import load_study
from optuna_deadline.cli.progress import show_wait
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import table_of
from optuna_deadline.planning.best_model import CheckpointAvailability, find_winner
from optuna_deadline.planning.feasibility import known_feasibility, none_feasible
from optuna_deadline.study.best import find_best
from optuna_deadline.worker.devices import host_name


@command
def load_best(
    study: Study,
    storage: Storage,
    to: Annotated[
        Path | None, typer.Option(help="Copy the checkpoint to this file, or into this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify the best model's file and print how to load it."""
    found = load_study(study, storage)
    table, terms = table_of(found)
    with show_wait("Checking checkpoints"):
        in_hand = CheckpointAvailability(table, host_name())
        known = known_feasibility(found)
        winner = find_winner(table, terms.direction, in_hand, feasibility=known)
    best = winner or find_best(found)
    if best is None:
        later = "and it has ended" if table.orders("").settled else "so try again later"
        raise DeadlineError(f"No trial of {study} has reported a value, {later}.")
    saved = None if winner is None else winner.checkpoint
    away = None if saved is None else in_hand.remote_origin(saved)
    if to is not None:
        if saved is None:
            raise DeadlineError(_unsaved(table, best.number))
        if away is not None:
            raise DeadlineError(f"{saved.path} is only on {away.host}; run this command there.")
        to = _copied(saved.path, to)
    path: Location | None = to or (None if saved is None else saved.path)
    answer: dict[str, Any] = {
        "trial": best.number,
        "value": best.value,
        "step": best.step,
        "checkpoint": None if path is None else str(path),
        "params": found.trials[best.number].params,
        "feasible": best.feasible,
    }
    if as_json:
        print_json(answer)
        return
    if not best.feasible:
        print(none_feasible(best.number))
    step = "" if best.step is None else f", step {best.step}"
    print(f"{study}: best value {best.value:.6g}, trial {best.number}{step}")
    print(f"parameters: {answer['params']}")
    if path is None:
        print(f"# {_unsaved(table, best.number)}")
    else:
        line = loading_code(path, here=away is None)
        print(line + (f"  # on {away.host}" if away is not None else ""))


def _unsaved(table: AllocationTable, number: int) -> str:
    """The reason for which there is no checkpoint."""
    if not any(line.number == number for line in table.trials()):
        return (
            f"study.optimize trained trial {number}, which keeps no checkpoint: train with "
            "'optuna-deadline run' and save with optuna_deadline.segment(trial).save."
        )
    return (
        f"Trial {number} saved no checkpoint that is whole: see "
        "optuna_deadline.segment(trial).save."
    )


def _copied(source: Location, to: Path) -> Path:
    """Copy a checkpoint to a file, or into a folder under its own name.

    Raises:
        DeadlineError: The source cannot be read, or the target cannot be written.
    """
    if to.is_dir():
        to /= name_of(source)
    if not to.parent.is_dir():
        raise DeadlineError(f"There is no folder {to.parent}; create it first.")
    try:
        with show_wait(f"Copying {source}"):
            write_atomically(to, partial(fetch, source), mode=0o666)
    except OSError as error:
        raise DeadlineError(
            f"{source} cannot be copied to {to} ({error.strerror or error}): name another file."
        ) from error
    return to
