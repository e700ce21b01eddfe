"""Join a pool, and stop on signals."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import SlotTaken
from optuna_deadline.rank.processes import ended_workers
from optuna_deadline.worker.agent import Agent
from optuna_deadline.worker.database_errors import (
    DATABASE_ERRORS,
    describe_database_error,
    is_refusal,
    may_pass,
)
from optuna_deadline.worker.devices import host_name

_logger = logging.getLogger("optuna_deadline")
_EXIT_SECONDS = 5.0  # seconds for the ranks of a killed worker to exit
_LOOK_SECONDS = 0.2  # seconds between two looks for them
_JOIN_SECONDS = 20.0  # seconds for which a worker tries to join
_RETRY_SECONDS = 0.5  # seconds between two tries of the database, or of slots that are held


T = TypeVar("T")


def when_answering(start: Callable[[], T], wait: float = 0.0, least: float = 0.0) -> T:
    """The result of a function that opens the database, called again while that may help.

    Args:
        start: Can be called again after a database error.
        wait: Seconds to wait for a database that does not answer at all. One that is there, and
            ends or refuses a connection, is waited for as in :func:`join` at least.
        least: Seconds to wait at least, whatever the error.
    """
    began, warned = time.monotonic(), False
    while True:
        try:
            result = start()
        except DATABASE_ERRORS as error:
            patience = max(wait, least, _JOIN_SECONDS if may_pass(error) else 0.0)
            if is_refusal(error) or time.monotonic() >= began + patience:
                raise
            if not warned:
                _logger.warning(
                    "The database does not serve this worker yet (%s); it waits %.0f s at most.",
                    describe_database_error(error), patience,
                )  # fmt: skip
            warned = True
            time.sleep(_RETRY_SECONDS)
        else:
            if warned:
                waited = time.monotonic() - began
                _logger.warning("The database serves this worker after %.1f s.", waited)
            return result


def join(agent: Agent, table: AllocationTable, wait: float = 0.0) -> None:
    """Join the pool; retry if the database restarts or aborts the transaction.

    Slots of killed workers of this host are released first.

    Args:
        agent: The worker that joins.
        table: The allocation table.
        wait: Seconds to wait for slots that are held, for example by a worker that has just died.
    """
    began, warned = time.monotonic(), False

    def register() -> None:
        _reap_killed_workers(table)
        agent.register()

    while True:
        try:
            return when_answering(register, least=_JOIN_SECONDS)
        except SlotTaken as error:
            if time.monotonic() > began + wait:
                raise
            if not warned:
                _logger.warning("Waiting %g s at most: %s", wait, error)
            warned = True
            time.sleep(_RETRY_SECONDS)
            with suppress(*DATABASE_ERRORS):
                table.reap()  # there may be no other worker that does it


def _reap_killed_workers(table: AllocationTable) -> None:
    """Release the slots of killed workers of this host before their leases end."""
    began, workers = time.monotonic(), table.on_host(host_name())
    gone, lingering = ended_workers(workers)
    while lingering and time.monotonic() < began + _EXIT_SECONDS:  # a GPU's memory is freed late
        time.sleep(_LOOK_SECONDS)
        gone, lingering = ended_workers(workers)
    if gone:
        table.reap_ended(gone)
        pids = " and ".join([str(worker.pid) for worker in workers if worker.id in gone])
        _logger.warning("Worker process %s was killed: its slots here are free again.", pids)


@contextmanager
def leaving_on_signals(agent: Agent, *, resumable: bool = True) -> Iterator[list[int]]:
    """Stop the worker on Ctrl-C and SIGTERM after it has saved its trials and released its slots.

    A second Ctrl-C exits at once. A second SIGTERM does not, since schedulers may send several.
    """
    asked: list[int] = []  # the signal that was received
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def leave(number: int, frame: object) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if asked:
            return
        asked.append(number)
        again = "; start the same command again to go on" if resumable else ""
        _logger.warning("Saving and leaving%s.", again)
        agent.leave("asked to leave")

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
