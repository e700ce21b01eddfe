"""Threads beside an agent: planning, preemption notices, notifications, the publisher."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from optuna.study import Study

from optuna_deadline._threads import PeriodicThread
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.notify import NotificationListener
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.dashboard import is_wanted
from optuna_deadline.planning.planner import Planner
from optuna_deadline.study.terms import Terms
from optuna_deadline.worker.agent import Agent
from optuna_deadline.worker.database_errors import (
    DATABASE_ERRORS,
    RETRY_SECONDS,
    describe_database_error,
    is_refusal,
)
from optuna_deadline.worker.preemption import PreemptionWatcher
from optuna_deadline.worker.time_limit import WorkerTimeLimit

if TYPE_CHECKING:
    from optuna_deadline.dashboard.publisher import Publisher

_logger = logging.getLogger("optuna_deadline")

_IMPORT_WARNING_SECONDS = 30.0  # seconds for an import


def planner_thread(
    ticks: Sequence[Callable[[], bool]],
    interval: float,
    changed: Callable[[], None],
    planned: Callable[[float], None],
    closes_at: Callable[[], float],
) -> PeriodicThread:
    """A thread that plans at intervals, and again soon if the database is unreachable.

    Args:
        ticks: Functions that plan once and return whether they changed anything.
        interval: Seconds between two plans.
        changed: Called after a change, so that the worker reads it at once.
        planned: Called after the ticks with the time at which they began.
        closes_at: When the study's training must stop, by the monotonic clock: a plan is made
            then, so that the study ends as soon as its last trial has left.
    """

    refused = False

    def work() -> float:
        nonlocal refused
        began = time.monotonic()
        try:
            if any([tick() for tick in ticks]):
                changed()
            planned(began)
        except DATABASE_ERRORS as error:
            if is_refusal(error) and not refused:
                refused = True
                _logger.error(
                    "This worker cannot plan, so no trial may start: %s. Give its database "
                    "account the rights of a planner.",
                    describe_database_error(error),
                )
            return RETRY_SECONDS  # the worker says that the database is unreachable, once
        left = closes_at() - time.monotonic()
        return min(interval, left) if left > 0 else interval

    return PeriodicThread("planner", work)


def planner_starter(planner: PeriodicThread, agent: Agent) -> Callable[[], None]:
    """Delay planning until the objective is loaded, since no trial can start before.

    If it is never loaded, planning starts at the deadline, since a planner ends the study.
    """
    began, warned = time.monotonic(), False

    def look() -> None:
        nonlocal warned
        if planner.ident is not None:
            return
        if agent.ready or agent.closing:
            planner.start()
        elif not warned and time.monotonic() > began + _IMPORT_WARNING_SECONDS:
            warned = True
            _logger.warning(
                "The objective is not loaded after %.0f s; trials start when its import ends.",
                _IMPORT_WARNING_SECONDS,
            )

    return look


@contextmanager
def watching_preemption(
    source: str | None, until: WorkerTimeLimit, agent: Agent
) -> Iterator[Callable[[], None]]:
    """Poll for a preemption of this host until the block ends, if a source is given.

    Yields a function that raises the exception of the thread that polls.
    """
    if source is None:
        yield lambda: None
        return
    notice = PreemptionWatcher(source, until, agent.wake)
    notice.poll()  # raises now if the source is unreachable
    thread = PeriodicThread("notice", notice.poll)
    thread.start()
    try:
        yield thread.check
    finally:
        thread.stop(0.0)


@contextmanager
def listening_for_notifications(
    database: Database, pool: str, agent: Agent, planner: PeriodicThread, *, wanted: bool
) -> Iterator[None]:
    """Read the table at once after a notification of PostgreSQL; polling continues."""
    if not wanted:
        yield
        return

    def look() -> None:
        agent.wake()
        planner.wake()

    listener = NotificationListener(database, pool, agent.id, look)
    listener.start()
    try:
        yield
    finally:
        listener.end()


def dashboard_publisher(
    database: Database,
    study: Study,
    table: AllocationTable,
    terms: Terms,
    planner: Planner,
    *,
    wanted: bool | None,
) -> Publisher | None:
    """Update optuna-dashboard until the block ends, if wanted and if it can show this study."""
    if not is_wanted(wanted):
        return None
    from optuna_deadline.dashboard.publisher import make_publisher

    return make_publisher(database, study, table, terms, lambda: planner.is_elected)
