"""Looking at a study's table, and waiting for what other processes do to it."""

from __future__ import annotations

import time
from collections.abc import Callable

import optuna
import psutil

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable


def table_of(study: optuna.Study, pool: str | None = None) -> AllocationTable:
    """The study's table, to look at."""
    return AllocationTable(open_table(study), pool or study.study_name, study._study_id)


def wait_until(condition: Callable[[], object], seconds: float = 60, every: float = 0.05) -> None:
    """Poll for something that happens in another process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(every)


def running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
