"""How a worker joins its pool, and how it is asked to leave."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from optuna_deadline.workers.agent import Agent
from optuna_deadline.workers.errors import DATABASE_AWAY, explain

_logger = logging.getLogger("optuna_deadline")

#: Seconds until a database that was away is tried again.
AWAY = 0.2

_JOIN = 20.0  # seconds for which a worker asks again to be let in


def join(agent: Agent) -> None:
    """Join the pool, through a database that restarts or cuts the first transaction off."""
    until = time.monotonic() + _JOIN
    while True:
        try:
            return agent.register()
        except DATABASE_AWAY as error:
            if time.monotonic() > until:
                raise
            _logger.warning("Joining the pool once more: %s.", explain(error))
            time.sleep(AWAY)


@contextmanager
def leaving_on_signals(agent: Agent) -> Iterator[None]:
    """Ctrl-C and SIGTERM checkpoint and release; a second Ctrl-C does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def leave(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        _logger.warning("Saving and leaving; start the same command again to go on.")
        agent.leave("asked to leave")

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
