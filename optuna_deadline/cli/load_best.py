"""``optuna-deadline load-best``: the best model in hand, its file checked byte for byte."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from optuna_deadline.checkpoints import write_atomically
from optuna_deadline.cli.app import Json, Storage, Study, command, say_json
from optuna_deadline.cli.progress import wait_late
from optuna_deadline.cli.studies import load_study
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reading import table_of
from optuna_deadline.planning.ends import InHand, find_winner
from optuna_deadline.stores import Location, fetch, loading
from optuna_deadline.workers.devices import host_name


@command
def load_best(
    study: Study,
    storage: Storage,
    to: Annotated[Path | None, typer.Option(help="Copy the checkpoint to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Say where the best model is, checked byte for byte, and how to load it."""
    found = load_study(study, storage)
    table, terms = table_of(found)
    with wait_late("Checking checkpoints"):
        in_hand = InHand(table, host_name())
        winner = find_winner(table, terms.direction, in_hand)
    if winner is None:
        raise DeadlineError(f"No trial of {study} has reported yet; ask again later.")
    saved = winner.checkpoint
    away = None if saved is None else in_hand.elsewhere(saved)
    if to is not None:
        if saved is None:
            raise DeadlineError(
                f"Trial {winner.number} saved no checkpoint: see optuna_deadline.segment(trial)."
            )
        if away is not None:
            raise DeadlineError(f"{saved.path} is on {away.host} alone; run this command there.")
        if not to.parent.is_dir():
            raise DeadlineError(f"There is no folder {to.parent}; make it first.")
        with wait_late(f"Copying {saved.path}"):
            write_atomically(to, partial(fetch, saved.path))
    path: Location | None = to or (None if saved is None else saved.path)
    told: dict[str, Any] = {
        "trial": winner.number,
        "value": winner.value,
        "step": winner.step,
        "checkpoint": None if path is None else str(path),
        "params": found.trials[winner.number].params,
    }
    if as_json:
        say_json(told)
        return
    print(f"{study}: best value {winner.value:.6g}, trial {winner.number}, step {winner.step}")
    print(f"parameters: {told['params']}")
    if path is None:
        print("# no checkpoint was saved: see optuna_deadline.segment(trial).save")
    else:
        print(loading(path) + (f"  # on {away.host}" if away is not None else ""))
