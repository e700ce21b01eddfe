"""``optuna-deadline status`` and ``top``: a study as it is now, once and live."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, replace

import optuna
from rich.console import Console

from optuna_deadline.allocation.sql.database.engine import autocommit, open_table
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.checking.rows import OUTCOME, summed_up
from optuna_deadline.cli.app import Json, Storage, Study, command, console, say_json
from optuna_deadline.cli.live.screen import shown
from optuna_deadline.cli.live.top import render
from optuna_deadline.cli.live.watching import Watcher
from optuna_deadline.cli.plain import plain_view
from optuna_deadline.cli.studies import load_study
from optuna_deadline.cli.traffic import measure
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import read_history, table_of

_LOOK = 0.5  # seconds


@command
def status(study: Study, storage: Storage, as_json: Json = False) -> None:
    """Show a study once: time left, best value, who trains and why."""
    found = load_study(study, storage)
    table, terms = table_of(found)
    view = Watcher(table, terms).view()
    with autocommit(open_table(found)) as connection:
        warning = measure(connection, table.study_id).warning
    if not view.rows and (history := read_history(found)).plain:
        view = plain_view(history)
    check = _check_of(found)
    if as_json:
        deadline = view.deadline.isoformat()
        say_json({**asdict(view), "deadline": deadline, "warning": warning, "check": check})
        return
    screen = Console()
    screen.print(render(replace(view, limits=()), max(24, screen.height)))
    for words in view.limits:
        screen.print(words, markup=False, highlight=False, soft_wrap=True)
    if check is not None:
        words = f"check of the first trial: {summed_up(check)}"
        screen.print(words, markup=False, highlight=False, soft_wrap=True)
    if warning is not None:
        console.print(f"{study}: {warning}.", markup=False, soft_wrap=True)


@command
def top(study: Study, storage: Storage) -> None:
    """Show a study live until it ends; Ctrl-C leaves it running."""
    found = load_study(study, storage)
    table, terms = table_of(found)
    if read_history(found).plain:
        raise DeadlineError(
            f"{study} is trained by study.optimize, which tells the table nothing: see "
            f"'optuna-deadline status {study}'."
        )
    screen = console if console.is_terminal else Console()
    with shown(Watcher(table, terms), screen):
        while not _is_over(table):
            time.sleep(_LOOK)
    if not table.orders("").settled:
        print(f"No worker is there to end {study}: start one, or extend it.")


def _check_of(study: optuna.Study) -> dict[str, str] | None:
    """What the check of the study's first trial found, where one was made."""
    storage = study._storage
    with suppress(KeyError):
        first = storage.get_trial_id_from_study_id_trial_number(study._study_id, 0)
        return storage.get_trial(first).user_attrs.get(OUTCOME)
    return None


def _is_over(table: AllocationTable) -> bool:
    """Whether nothing more will happen: the study has ended, or its time has and none works."""
    orders = table.orders("")
    if orders.settled or table.now() < orders.end:
        return orders.settled
    return all(worker.study_id != table.study_id for worker in table.workers())
