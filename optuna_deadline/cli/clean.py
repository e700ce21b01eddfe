"""``optuna-deadline clean``: delete the checkpoints that a study no longer needs."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from optuna_deadline._numbers import format_count
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.checkpoints.restore import CheckpointFolders
from optuna_deadline.checkpoints.storage import (
    folder_of,
    name_of,
    place_of,
    remove,
    root_of,
    size,
)
from optuna_deadline.cli.app import Storage, Study, command
from optuna_deadline.cli.databases import load_study
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import table_of
from optuna_deadline.planning.best_model import (
    CheckpointAvailability,
    find_winner,
    kept_checkpoint,
)
from optuna_deadline.planning.feasibility import known_feasibility
from optuna_deadline.planning.leftovers import delete
from optuna_deadline.study import agreement
from optuna_deadline.worker.devices import host_name


@command
def clean(
    study: Study,
    storage: Storage,
    checkpoints: Annotated[
        str | None,
        typer.Option(help="Folder or URL of checkpoints; by default where the study has saved."),
    ] = None,
) -> None:
    """Delete the checkpoints of trials that have ended, except the best model's.

    Of a study that has ended and has no budget, events that no figure needs are counted and go.
    """
    found = load_study(study, storage)
    table, terms = table_of(found)
    in_hand, known = CheckpointAvailability(table, host_name()), known_feasibility(found)
    best = kept_checkpoint(find_winner(table, terms.direction, in_hand, feasibility=known))
    if best is None and table.checkpoints():
        raise DeadlineError(
            f"The best checkpoint of {study} cannot be read here, so nothing is deleted: run this "
            "where its checkpoints are."
        )
    place = Path() if checkpoints is None else place_of(checkpoints)
    given = root_of(place, study, agreement.key(open_table(found), found))
    ended = {row.number for row in table.trials() if not row.alive and row.fence}
    # Read after the trials, so that it includes the last checkpoint of each.
    rows = table.checkpoints()
    old = [row for row in rows if row.number in ended and row.path != best]
    deletion = delete(table, old, name_of(given), host_name(), math.inf)
    freed, files = deletion.size, deletion.files
    named = {(row.number, name_of(row.path)) for row in rows}
    roots = {folder_of(folder_of(row.path)) for row in rows}
    roots = {root for root in roots if name_of(root) == name_of(given)}
    for root in roots if checkpoints is None else {*roots, given}:
        folders = CheckpointFolders(root)
        for number in [one for one in ended if folders.may_hold(one)]:
            for location in folders.written_files(number):
                if (number, name_of(location)) not in named:
                    with suppress(FileNotFoundError):
                        freed, files = freed + size(location), files + 1
                        remove(location)
    kept = "no trial has saved a checkpoint" if best is None else f"the best model is {best}"
    print(f"{study}: deleted {format_count(files, 'file')} ({decimal(freed)}); {kept}.")
    deletion.warn(study)
    events, workers = table.fold()
    if events:
        folded, gone = format_count(events, "event"), format_count(workers, "worker")
        print(f"{study}: {folded} folded into one, {gone} forgotten.")
