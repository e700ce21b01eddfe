"""What runs beside an agent in its process: planning, notices, the news, a page of figures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import sqlalchemy as sa
from optuna.study import Study

from optuna_deadline._threads import Ticker
from optuna_deadline.allocation.sql.database.listener import Listener
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.elastic.lifecycle import AWAY
from optuna_deadline.planning.planner import Planner
from optuna_deadline.study.terms import Terms
from optuna_deadline.worker.agent import Agent
from optuna_deadline.worker.errors import DATABASE_AWAY
from optuna_deadline.worker.notice import Notice
from optuna_deadline.worker.time_limit import Until

if TYPE_CHECKING:
    from optuna_deadline.dashboard.publisher import Publisher


_logger = logging.getLogger("optuna_deadline")

_LONG = 30.0  # seconds for an import


def planning(
    ticks: Sequence[Callable[[], bool]], interval: float, changed: Callable[[], None]
) -> Ticker:
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
        except DATABASE_AWAY:
            return AWAY  # the worker says so, once
        return interval

    return Ticker("planner", work)


def beginning(planner: Ticker, agent: Agent) -> Callable[[], None]:
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
        elif not told and time.monotonic() > began + _LONG:
            told = True
            _logger.warning(
                "The objective is not loaded after %.0f s; trials start when its import ends.",
                _LONG,
            )

    return look


@contextmanager
def hearing(source: str | None, until: Until, agent: Agent) -> Iterator[None]:
    """Ask meanwhile whether this host is taken back, where that is wanted."""
    if source is None:
        yield
        return
    notice = Notice(source, until, agent.wake)
    notice.look()  # what cannot be asked is told at once
    thread = Ticker("notice", notice.look)
    thread.start()
    try:
        yield
    finally:
        thread.end(0.0)


@contextmanager
def listening(
    engine: sa.Engine, pool: str, agent: Agent, planner: Ticker, *, wanted: bool
) -> Iterator[None]:
    """Look at once when PostgreSQL says that something changed; polling goes on anyway."""
    if not wanted:
        yield
        return

    def look() -> None:
        agent.wake()
        planner.wake()

    listener = Listener(engine, pool, agent.id, look)
    listener.start()
    try:
        yield
    finally:
        listener.end()


def publishing(
    engine: sa.Engine,
    study: Study,
    table: AllocationTable,
    terms: Terms,
    planner: Planner,
    *,
    wanted: bool | None,
) -> Publisher | None:
    """What keeps optuna-dashboard fresh, where it shows this study and that is wanted."""
    if not to_publish(wanted):
        return None
    from optuna_deadline.dashboard.publisher import make_publisher

    return make_publisher(engine, study, table, terms, lambda: planner.rules)


def to_publish(publish: bool | None) -> bool:
    """Whether to publish: as asked, else where optuna-dashboard is installed."""
    return find_spec("optuna_dashboard") is not None if publish is None else publish
