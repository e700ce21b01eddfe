"""Bringing a study's deadline forward, so that no test waits for it or is late for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import optuna
from tables import table_of

import optuna_deadline
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import Result
from optuna_deadline.study.rows import ANY_STUDY, bring_forward


def end_within(table: AllocationTable, seconds: float) -> bool:
    """Let a study end so many seconds from now; False if it ends before that anyway."""
    with table.database.each_alone(ANY_STUDY) as tx:
        return bring_forward(tx, table.study_id, table.now() + seconds)


def saved(count: int) -> Callable[[AllocationTable], bool]:
    """Whether the table has so many checkpoints, or more."""
    return lambda table: len(table.checkpoints()) >= count


def run_until(
    condition: Callable[[AllocationTable], object],
    study: optuna.Study,
    objective: Any,
    *,
    seconds: float = 3.0,
    **options: Any,
) -> Result:
    """``optuna_deadline.run`` whose deadline comes so many seconds after a condition holds.

    A condition that never holds lets the study end after 100 s, without what the test looks for.
    """
    table = table_of(study)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if condition(table) and end_within(table, seconds):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return optuna_deadline.run(study, objective, deadline="100s", **options)
    finally:
        over.set()
        watcher.join()
