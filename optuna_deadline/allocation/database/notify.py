"""NOTIFY and LISTEN on PostgreSQL: a hint that there is something to read, only for speed.

A transaction notifies if another worker may act on it: a plan, a release, a reap, the end of the
study. Renewals and reports never notify, because each notifying commit locks the whole server.

A listener has its own connection and wakes its worker within milliseconds instead of at the next
poll. Nothing depends on it: polling finds everything that is lost while it is disconnected or
behind a pooler. So its errors cost time only.
"""

from __future__ import annotations

import hashlib
import logging
import random
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from optuna_deadline._wake_pipe import WakePipe

if TYPE_CHECKING:
    from optuna_deadline.allocation.database.access import Database


def channel(pool_name: str, worker: str | None = None) -> str:
    """The channel of a worker or, without one, of all workers of a pool.

    One channel each, so that a notification needs no payload and wakes no other worker. Any name
    makes a valid one.
    """
    named = pool_name if worker is None else f"{pool_name}\0{worker}"
    return f"optuna_deadline_{hashlib.blake2s(named.encode(), digest_size=12).hexdigest()}"


_logger = logging.getLogger("optuna_deadline")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0  # seconds
_DRIVERS = ("psycopg2", "psycopg")


class NotificationListener(threading.Thread):
    """Calls ``wake`` for each notification to a worker, and after each reconnection.

    Args:
        database: The table's database; the listener takes a connection of its own from it.
        pool: The pool.
        worker_id: The worker; notifications to it or to the whole pool wake it.
        wake: Called from this thread; must not block.
    """

    def __init__(
        self, database: Database, pool: str, worker_id: str, wake: Callable[[], None]
    ) -> None:
        super().__init__(name="optuna-deadline-listener", daemon=True)
        self._engine = database.engine
        self._pool = pool
        self._worker_id = worker_id
        self._wake = wake
        self._ended = threading.Event()
        self._ending = WakePipe()
        self.connected = threading.Event()

    @staticmethod
    def works_on(database: Database) -> bool:
        """Whether the database and its driver support notifications."""
        engine = database.engine
        return engine.dialect.name == "postgresql" and engine.dialect.driver in _DRIVERS

    def end(self) -> None:
        """Stop listening, without waiting for a server that hangs."""
        self._ended.set()
        self._ending.wake()
        if self.is_alive():
            self.join(timeout=1)
        if not self.is_alive():
            self._ending.close()

    def run(self) -> None:
        """Listen until :meth:`end`, and reconnect after growing pauses."""
        pause = _FIRST_PAUSE
        while not self._ended.is_set():
            try:
                connection = self._connect()
            except Exception as error:  # whatever the driver raises, polling continues
                _logger.debug("No notices from the database: %s", type(error).__name__)
                self._ended.wait(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            try:
                self._listen(connection)
            except Exception as error:
                _logger.debug("The listener's connection ended: %s", type(error).__name__)
                self._ended.wait(pause)
            finally:
                self.connected.clear()
                with suppress(Exception):
                    connection.close()

    def _connect(self) -> Any:
        pooled = self._engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        connection.rollback()
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {channel(self._pool)}")
            cursor.execute(f"LISTEN {channel(self._pool, self._worker_id)}")
        return connection

    def _listen(self, connection: Any) -> None:
        receive = _receive_2 if self._engine.dialect.driver == "psycopg2" else _receive_3
        self.connected.set()
        self._wake()  # notifications without a listener are lost, so poll
        sources = select.poll()  # not select(), which rejects descriptors above 1,023
        for source in (connection.fileno(), self._ending):
            sources.register(source, select.POLLIN)
        while not self._ended.is_set():
            ready = dict(sources.poll())
            if connection.fileno() in ready and receive(connection):
                self._wake()


def _receive_2(connection: Any) -> int:
    """The number of notifications."""
    connection.poll()
    count = len(connection.notifies)
    connection.notifies.clear()
    return count


def _receive_3(connection: Any) -> int:
    # The public generator does not wake for the pipe, and had no timeout before 3.2.
    connection.pgconn.consume_input()
    count = 0
    while connection.pgconn.notifies() is not None:
        count += 1
    return count
