"""NOTIFY: says that there is something to read, never what. PostgreSQL only, and only for speed.

Sent if another worker may act on it: a plan, a release, a reap, the end of the study. Never by a
renewal or a report: each notifying commit takes a lock on the whole server.

LISTEN on a connection of its own: news arrive in milliseconds instead of at the next poll.

Nothing depends on it. Whatever is lost while it is away, or swallowed by a pooler, is found by
polling; so its errors are no errors, only slowness.
"""

from __future__ import annotations

import hashlib
import logging
import random
import select
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from optuna_deadline._wake_pipe import WakePipe
from optuna_deadline.allocation.sql.database.transaction import Transaction

_MAX_NOTIFIED = 8  #: workers that are named one by one; with more, all workers poll


def channel(pool_name: str, worker: str | None = None) -> str:
    """The channel of a worker or, without one, of all workers of a pool.

    A channel each, so that a notice needs no payload and wakes no other worker. Any name makes a
    valid one.
    """
    named = pool_name if worker is None else f"{pool_name}\0{worker}"
    return f"optuna_deadline_{hashlib.blake2s(named.encode(), digest_size=12).hexdigest()}"


def notify(tx: Transaction, workers: Iterable[str | None] | None = None) -> None:
    """Wake listeners of the pool when this transaction commits.

    Args:
        tx: The transaction.
        workers: Those that it concerns, none of which may be left; without them, all of the pool.
    """
    if tx.connection.dialect.name != "postgresql":
        return
    named = sorted({worker for worker in workers or () if worker is not None})
    if workers is not None and not named:
        return
    all_workers = not 0 < len(named) <= _MAX_NOTIFIED
    channels = [channel(tx.pool, worker) for worker in ([None] if all_workers else named)]
    tx.execute(sa.select(*[sa.func.pg_notify(name, "") for name in channels]))


_logger = logging.getLogger("optuna_deadline")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0  # seconds
_DRIVERS = ("psycopg2", "psycopg")


class NotificationListener(threading.Thread):
    """Calls ``wake`` for each notice that concerns a worker, and after each reconnection.

    Args:
        engine: The table's engine; the connection is made like its own, outside its pool.
        pool: The pool to hear of.
        worker_id: The worker; it is woken by notices for it alone and for the whole pool.
        wake: Called from this thread; must not block.
    """

    def __init__(
        self, engine: sa.Engine, pool: str, worker_id: str, wake: Callable[[], None]
    ) -> None:
        super().__init__(name="optuna-deadline-listener", daemon=True)
        self._engine = engine
        self._pool = pool
        self._worker_id = worker_id
        self._wake = wake
        self._ended = threading.Event()
        self._ending = WakePipe()
        self.connected = threading.Event()

    @staticmethod
    def works_on(engine: sa.Engine) -> bool:
        """Whether the database and its driver can notify."""
        return engine.dialect.name == "postgresql" and engine.dialect.driver in _DRIVERS

    def end(self) -> None:
        """Stop listening; does not wait for a server that hangs."""
        self._ended.set()
        self._ending.wake()
        if self.is_alive():
            self.join(timeout=1)
        if not self.is_alive():
            self._ending.close()

    def run(self) -> None:
        """Listen until :meth:`end`, and connect again with growing pauses."""
        pause = _FIRST_PAUSE
        while not self._ended.is_set():
            try:
                connection = self._connect()
            except Exception as error:  # whatever the driver raises, polling goes on
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
        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        limits = {"connect_timeout": 5, "keepalives_idle": 30, "keepalives_interval": 10}
        connection: Any = self._engine.dialect.connect(*arguments, **{**limits, **options})
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {channel(self._pool)}")
            cursor.execute(f"LISTEN {channel(self._pool, self._worker_id)}")
        return connection

    def _listen(self, connection: Any) -> None:
        receive = _receive_2 if self._engine.dialect.driver == "psycopg2" else _receive_3
        self.connected.set()
        self._wake()  # notices without a listener are lost: look
        while not self._ended.is_set():
            ready, _, _ = select.select([connection.fileno(), self._ending], [], [])
            if connection.fileno() in ready and receive(connection):
                self._wake()


def _receive_2(connection: Any) -> int:
    """How many notices have come."""
    connection.poll()
    count = len(connection.notifies)
    connection.notifies.clear()
    return count


def _receive_3(connection: Any) -> int:
    # The public generator would not wake for our pipe, nor did it take a timeout before 3.2.
    connection.pgconn.consume_input()
    count = 0
    while connection.pgconn.notifies() is not None:
        count += 1
    return count
