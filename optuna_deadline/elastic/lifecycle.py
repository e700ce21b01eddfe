"""How a worker joins its pool, and how it is asked to leave."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.errors import SlotTaken
from optuna_deadline.rank.processes import ended
from optuna_deadline.worker.agent import Agent
from optuna_deadline.worker.devices import host_name
from optuna_deadline.worker.errors import DATABASE_AWAY, explain

_logger = logging.getLogger("optuna_deadline")

#: Seconds until a database that was away is tried again.
AWAY = 0.2

_LINGER = 5.0  # seconds for ranks to end whose worker was killed
_JOIN = 20.0  # seconds for which a worker asks again to be let in
_TAKEN = 1.0  # seconds until slots that were taken are asked for again


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
            _bury_the_killed(table)
            return agent.register()
        except DATABASE_AWAY as error:
            if time.monotonic() > began + _JOIN:
                raise
            _logger.warning("Joining the pool once more: %s.", explain(error))
            time.sleep(AWAY)
        except SlotTaken as error:
            if time.monotonic() > began + wait:
                raise
            if not told:
                _logger.warning("Waiting %g s at most: %s", wait, error)
            told = True
            time.sleep(_TAKEN)
            with suppress(*DATABASE_AWAY):
                table.reap()  # nobody else may be there to do it


def _bury_the_killed(table: AllocationStore) -> None:
    """Free what this host's workers hold that were killed, rather than when their leases end."""
    began, workers = time.monotonic(), table.on_host(host_name())
    gone, lingering = ended(workers)
    while lingering and time.monotonic() < began + _LINGER:  # a GPU's memory takes its time
        time.sleep(AWAY)
        gone, lingering = ended(workers)
    if gone:
        table.bury(gone)
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
