"""``optuna-deadline clean``: delete the checkpoints that a study no longer needs."""

from __future__ import annotations

from rich.filesize import decimal

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.checkpoints.restore import CheckpointFolders
from optuna_deadline.checkpoints.storage import name_of, place_of, remove, root_of, size
from optuna_deadline.cli.app import CheckpointPlace, Storage, Study, command
from optuna_deadline.cli.databases import load_study
from optuna_deadline.elastic import CHECKPOINTS
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import table_of
from optuna_deadline.history.text import format_count
from optuna_deadline.planning.feasibility import known_feasibility
from optuna_deadline.planning.settlement import (
    CheckpointAvailability,
    find_winner,
    superfluous,
)
from optuna_deadline.study import terms as study_terms
from optuna_deadline.worker.devices import host_name


@command
def clean(study: Study, storage: Storage, checkpoints: CheckpointPlace = str(CHECKPOINTS)) -> None:
    """Delete the checkpoints of trials that have ended, except the best model's."""
    found = load_study(study, storage)
    table, terms = table_of(found)
    in_hand, known = CheckpointAvailability(table, host_name()), known_feasibility(found)
    best = find_winner(table, terms.direction, in_hand, feasibility=known)
    if best is None or best.checkpoint is None:
        raise DeadlineError(
            f"The best checkpoint of {study} cannot be read here, so nothing is deleted: run this "
            "where its checkpoints are."
        )
    table.drop_checkpoints(*superfluous(table, best))
    ended = [row.number for row in table.trials() if not row.alive and row.fence]
    # Read after the trials, so that it includes the last checkpoint of each.
    named = {(row.number, name_of(row.path)) for row in table.checkpoints()}
    root = root_of(place_of(checkpoints), study, study_terms.key(open_table(found), found))
    folders, freed, files = CheckpointFolders(root), 0, 0
    for number in [one for one in ended if folders.may_hold(one)]:
        for location in folders.written_files(number):
            if (number, name_of(location)) not in named:
                freed, files = freed + size(location), files + 1
                remove(location)
    print(
        f"{study}: deleted {format_count(files, 'file')} ({decimal(freed)}) below {root}; "
        f"the best model is {best.checkpoint.path}."
    )
