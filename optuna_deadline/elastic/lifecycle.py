"""How a worker joins its pool, and how it is asked to leave.

What runs beside an agent in its process: planning, notices, the news, a page of figures.

A file that says that a worker's loop turns, for whoever starts processes again that hang.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from optuna.study import Study

from optuna_deadline._threads import PeriodicThread
from optuna_deadline.allocation.sql.database.notify import NotificationListener
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.errors import DeadlineError, SlotTaken
from optuna_deadline.planning.planner import Planner
from optuna_deadline.rank.processes import ended_workers
from optuna_deadline.study.terms import Terms
from optuna_deadline.worker.agent import Agent
from optuna_deadline.worker.devices import host_name
from optuna_deadline.worker.lease_clock import DATABASE_ERRORS, describe_database_error
from optuna_deadline.worker.time_limit import PreemptionWatcher, WorkerTimeLimit

if TYPE_CHECKING:
    from optuna_deadline.dashboard.publisher import Publisher


_logger = logging.getLogger("optuna_deadline")

#: Seconds until a database that was away is tried again.
RETRY_SECONDS = 0.2

_EXIT_SECONDS = 5.0  # seconds for ranks to end whose worker was killed
_JOIN_SECONDS = 20.0  # seconds for which a worker asks again to be let in
_SLOT_RETRY_SECONDS = 1.0  # seconds until slots that were taken are asked for again


def join(agent: Agent, table: AllocationStore, wait: float = 0.0) -> None:
    """Join the pool, through a database that restarts or cuts the first transaction off.

    What workers of this host hold whose processes were killed is freed before.

    Args:
        agent: Who joins.
        table: The allocation table.
        wait: Seconds to wait for slots that are taken, as by a worker that has just died.
    """
    began, told = time.monotonic(), False
    while True:
        try:
            _reap_killed_workers(table)
            return agent.register()
        except DATABASE_ERRORS as error:
            if time.monotonic() > began + _JOIN_SECONDS:
                raise
            _logger.warning("Joining the pool once more: %s.", describe_database_error(error))
            time.sleep(RETRY_SECONDS)
        except SlotTaken as error:
            if time.monotonic() > began + wait:
                raise
            if not told:
                _logger.warning("Waiting %g s at most: %s", wait, error)
            told = True
            time.sleep(_SLOT_RETRY_SECONDS)
            with suppress(*DATABASE_ERRORS):
                table.reap()  # nobody else may be there to do it


def _reap_killed_workers(table: AllocationStore) -> None:
    """Free what this host's workers hold that were killed, rather than when their leases end."""
    began, workers = time.monotonic(), table.on_host(host_name())
    gone, lingering = ended_workers(workers)
    while lingering and time.monotonic() < began + _EXIT_SECONDS:  # a GPU's memory takes its time
        time.sleep(RETRY_SECONDS)
        gone, lingering = ended_workers(workers)
    if gone:
        table.reap_ended(gone)
        pids = " and ".join([str(worker.pid) for worker in workers if worker.id in gone])
        _logger.warning("Worker process %s was killed: what it held here is free again.", pids)


@contextmanager
def leaving_on_signals(agent: Agent) -> Iterator[None]:
    """Ctrl-C and SIGTERM checkpoint and release; a second Ctrl-C does not wait.

    A second SIGTERM does: who stops a job may send it more than once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def leave(number: int, frame: object) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if asked:
            return
        asked.append(number)
        _logger.warning("Saving and leaving; start the same command again to go on.")
        agent.leave("asked to leave")

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_IMPORT_WARNING_SECONDS = 30.0  # seconds for an import


def planner_thread(
    ticks: Sequence[Callable[[], bool]], interval: float, changed: Callable[[], None]
) -> PeriodicThread:
    """A thread that plans: what it changed is looked at now, a database that is away soon.

    Args:
        ticks: Each plans once, and says whether it changed anything.
        interval: Seconds between two passes.
        changed: Called after a change.
    """

    def work() -> float:
        try:
            if any([tick() for tick in ticks]):
                changed()
        except DATABASE_ERRORS:
            return RETRY_SECONDS  # the worker says so, once
        return interval

    return PeriodicThread("planner", work)


def planner_starter(planner: PeriodicThread, agent: Agent) -> Callable[[], None]:
    """What lets planning begin once the objective is loaded: no trial could start before.

    Where it never is, planning begins at the end, since the study has to be settled.
    """
    began, told = time.monotonic(), False

    def look() -> None:
        nonlocal told
        if planner.ident is not None:
            return
        if agent.ready or agent.closing:
            planner.start()
        elif not told and time.monotonic() > began + _IMPORT_WARNING_SECONDS:
            told = True
            _logger.warning(
                "The objective is not loaded after %.0f s; trials start when its import ends.",
                _IMPORT_WARNING_SECONDS,
            )

    return look


@contextmanager
def watching_preemption(
    source: str | None, until: WorkerTimeLimit, agent: Agent
) -> Iterator[None]:
    """Ask meanwhile whether this host is taken back, where that is wanted."""
    if source is None:
        yield
        return
    notice = PreemptionWatcher(source, until, agent.wake)
    notice.poll()  # what cannot be asked is told at once
    thread = PeriodicThread("notice", notice.poll)
    thread.start()
    try:
        yield
    finally:
        thread.stop(0.0)


@contextmanager
def listening_for_notifications(
    engine: sa.Engine, pool: str, agent: Agent, planner: PeriodicThread, *, wanted: bool
) -> Iterator[None]:
    """Look at once when PostgreSQL says that something changed; polling goes on anyway."""
    if not wanted:
        yield
        return

    def look() -> None:
        agent.wake()
        planner.wake()

    listener = NotificationListener(engine, pool, agent.id, look)
    listener.start()
    try:
        yield
    finally:
        listener.end()


def dashboard_publisher(
    engine: sa.Engine,
    study: Study,
    table: AllocationTable,
    terms: Terms,
    planner: Planner,
    *,
    wanted: bool | None,
) -> Publisher | None:
    """What keeps optuna-dashboard fresh, where it shows this study and that is wanted."""
    if not should_publish(wanted):
        return None
    from optuna_deadline.dashboard.publisher import make_publisher

    return make_publisher(engine, study, table, terms, lambda: planner.is_elected)


def should_publish(publish: bool | None) -> bool:
    """Whether to publish: as asked, else where optuna-dashboard is installed."""
    return find_spec("optuna_dashboard") is not None if publish is None else publish


#: Names the file.
HEARTBEAT_VARIABLE = "OPTUNA_DEADLINE_PULSE"

_HEARTBEAT_SECONDS = 1.0  # seconds between two beats


@contextmanager
def heartbeat_file(
    path: str | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """What to call in each round: it touches the file, which is there only meanwhile.

    It says nothing of the database: a worker that cannot reach it minds its leases by itself.

    Args:
        path: The file; by default the variable's, or none.
        clock: Tells the seconds.

    Raises:
        DeadlineError: The file cannot be written.
    """
    path = os.environ.get(HEARTBEAT_VARIABLE) if path is None else path
    if not path:
        yield lambda: None
        return
    file, due = Path(path), clock() + _HEARTBEAT_SECONDS
    try:
        file.touch()
    except OSError as error:
        raise DeadlineError(
            f"{HEARTBEAT_VARIABLE} must name a file that this worker may write, but got {path!r}: "
            f"{error}."
        ) from None

    def beat() -> None:
        nonlocal due
        if clock() >= due:
            due = clock() + _HEARTBEAT_SECONDS
            with suppress(OSError):  # a full disk is no reason to stop
                file.touch()

    try:
        yield beat
    finally:
        file.unlink(missing_ok=True)
