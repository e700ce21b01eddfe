"""``optuna-deadline top``: a study live."""

from __future__ import annotations

import shlex
import time

from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli.app import Storage, Study, command, console
from optuna_deadline.cli.databases import load_study
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import read_history, table_of
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.live.top import showing_study
from optuna_deadline.live.watcher import StudyWatcher

_LOOK = 0.5  # seconds


@command
def top(study: Study, storage: Storage) -> None:
    """Show a study live until it ends; Ctrl-C leaves it running."""
    found = load_study(study, storage)
    table, terms = table_of(found)
    if read_history(found).plain:
        raise DeadlineError(
            f"{study} is trained by study.optimize, which does not use the table: see "
            f"'optuna-deadline status {shlex.quote(study)}'."
        )
    screen = console if console.is_terminal else SafeConsole()
    with showing_study(StudyWatcher(table, terms), screen):
        while not _is_over(table):
            time.sleep(_LOOK)
    if not table.orders("").settled:
        print(f"{study} has no worker that could end it: start one, or extend it.")


def _is_over(table: AllocationTable) -> bool:
    """Whether the study has ended, or its deadline has passed and no worker is left."""
    orders = table.orders("")
    if orders.settled or table.now() < orders.end:
        return orders.settled
    return all(worker.study_id != table.study_id for worker in table.workers())
