"""A short transaction with the database's time and its events, and limits for frozen clients.

A transaction writes its events together just before it commits, in one round trip. Times in SQL
are the database's; a process uses its monotonic clock, and texts for users the wall clock.

A client that freezes inside a transaction must not block others for long. The limits are sent as
``SET LOCAL`` with the statement that reads the time, in each transaction. Start-up options would
work on a direct connection, but pgbouncer refuses them, and a ``SET`` at connect time would stay
with whichever server connection pgbouncer used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.checked_columns import unknown_content
from optuna_deadline.allocation.rules import CLOCK_TOLERANCE


class database_now(FunctionElement[float]):
    """Seconds since the epoch by the database's clock, read again in each statement."""

    type = sa.Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite_now(element: database_now, compiler: SQLCompiler, **kwargs: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgres_now(element: database_now, compiler: SQLCompiler, **kwargs: object) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class ClockMonitor:
    """Checks that the database's clock runs evenly, by the process's monotonic clock.

    A clock that is set forward makes every lease look expired while its holder still trains. So a
    reaper first watches the clock for the time of a lease and its grace: what looks expired after
    that has not been renewed for so long, whatever the clock did before. A process that was frozen
    has not watched: the clock may have been set back and forward again, and leases renewed in
    between look expired until the next renewal.
    """

    def __init__(self) -> None:
        self._offset: float | None = None  # the database's time minus this process's
        self._since = math.inf
        self._doubt = math.inf
        self._read = math.inf
        self._unread = 0.0  # the longest time between two readings since then

    def record_reading(self, now: float, sent: float, received: float) -> None:
        """Record a reading that was made between two instants of this process."""
        self._doubt = received - sent
        middle = now - (sent + received) / 2
        self._unread = max(self._unread, received - self._read)
        self._read = received
        if self._offset is None or abs(middle - self._offset) > self._doubt / 2 + CLOCK_TOLERANCE:
            self._since = received
            self._offset = middle
            self._unread = 0.0
        elif self._doubt < CLOCK_TOLERANCE:
            self._offset = middle  # follows a slow drift

    def is_reliable(self, seconds: float, doubt: float, unread: float = math.inf) -> bool:
        """Whether the clock has run evenly for some time and the last reading is exact enough.

        Args:
            seconds: For how long.
            doubt: Seconds that the last reading may have taken.
            unread: Seconds between two readings after which the watch starts again.
        """
        if self._unread > unread:
            self._since, self._unread = time.monotonic(), 0.0
        return self._doubt <= doubt and time.monotonic() - self._since >= seconds


#: A frozen client's session ends after this long; clients that wait for its rows continue then.
FROZEN_SECONDS = 0.8  # seconds
#: Longer than ``FROZEN_SECONDS``: waiting for a client that has just frozen is not an error.
_LOCK = 2.0
_STATEMENT = 5.0
#: For a client that is slow and not frozen.
_TRANSACTION = 10.0
_QUEUE = 60.0
_SINCE_17 = (17,)


def begin_bounded(
    connection: sa.Connection, *, statement: float = _STATEMENT, idle: float | None = None
) -> float:
    """Set the limits of the transaction that begins, and read the database's time.

    Args:
        connection: In a transaction without any statement so far.
        statement: Seconds for each statement; creating the tables may take more.
        idle: Seconds between two statements; None for ``FROZEN_SECONDS``.
    """
    if connection.dialect.name != "postgresql":
        return float(connection.execute(sa.select(database_now())).scalar_one())
    limits = {
        "lock_timeout": _LOCK,
        "statement_timeout": statement,
        "idle_in_transaction_session_timeout": FROZEN_SECONDS if idle is None else idle,
    }
    version = connection.dialect.server_version_info
    if version and version >= _SINCE_17:
        limits["transaction_timeout"] = max(_TRANSACTION, 2 * statement)
    query = sa.select(database_now(), *(_limit(name, value) for name, value in limits.items()))
    return float(connection.execute(query).one()[0])


def wait_in_line(connection: sa.Connection) -> None:
    """Wait for a long queue, but for a frozen client only ``FROZEN_SECONDS``."""
    names = ["lock_timeout", "statement_timeout"]
    version = connection.dialect.server_version_info
    if version and version >= _SINCE_17:
        names.append("transaction_timeout")
    connection.execute(sa.select(*(_limit(name, _QUEUE) for name in names)))


def _limit(name: str, seconds: float) -> sa.ColumnElement[str]:
    return sa.func.set_config(name, f"{seconds * 1000:.0f}ms", True)


@dataclass(frozen=True)
class Transaction:
    """One transaction: its connection, the database's time when it began, and its pool."""

    connection: sa.Connection
    now: float
    pool: str
    study_id: int
    given: Callable[[], float] | None = None  #: a test's time instead of the database's
    _events: list[dict[str, object]] = field(default_factory=list)

    @property
    def latest(self) -> sa.ColumnElement[float]:
        """The time of a statement, which may be long after ``now``.

        A client may freeze between two statements, and renewals in between are not in the future.
        """
        return database_now() if self.given is None else sa.literal(self.given())

    def execute(self, statement: sa.Executable) -> Any:
        """Run one statement."""
        try:
            return self.connection.execute(statement)
        except OverflowError:  # of SQLite's driver
            raise unknown_content("a number of more than 64 bits") from None

    def rows(self, statement: sa.Select[Any] | sa.CompoundSelect[Any]) -> list[Any]:
        """Run a query."""
        return list(self.execute(statement).all())

    def event(
        self,
        kind: str,
        *,
        number: int | None = None,
        slot: int | None = None,
        fence: int | None = None,
        term: int | None = None,
        worker: str | None = None,
        study_id: int | None = None,
        pool: str | None = None,
        **detail: object,
    ) -> None:
        """Add an event of this transition, by default for this study and pool."""
        self._events.append(
            {
                "at": self.now,
                "pool": self.pool if pool is None else pool,
                "study_id": self.study_id if study_id is None else study_id,
                "kind": kind,
                "number": number,
                "slot": slot,
                "fence": fence,
                "term": term,
                "worker": worker,
                "detail": detail,
            }
        )

    def write_events(self) -> None:
        """Write the events in their order."""
        if self._events:
            # Not as one statement's VALUES: to compile a thousand rows takes longer than a client
            # may be idle in a transaction.
            self.connection.execute(sa.insert(schema.event), self._events)
            self._events.clear()


class Transactions:
    """Opens transactions on one pool and study; tests set the time by ``now``."""

    def __init__(
        self,
        engine: sa.Engine,
        pool: str,
        study_id: int,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.engine = engine
        self.pool = pool
        self.study_id = study_id
        self.clock = ClockMonitor()
        self._now = now

    @contextmanager
    def __call__(self, name: str = "") -> Iterator[Transaction]:
        """Begin, yield, commit; roll back on any error.

        Args:
            name: Of the transition; ``NAME.commit`` and ``NAME.committed`` are its crash points.
        """
        with self.engine.begin() as connection:
            sent = time.monotonic()
            now = begin_bounded(connection)
            if self._now is None:
                self.clock.record_reading(now, sent, time.monotonic())
            else:
                now = self._now()
            tx = Transaction(connection, now, self.pool, self.study_id, self._now)
            yield tx
            tx.write_events()
            crashpoint(f"{name}.commit")
        crashpoint(f"{name}.committed")

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A reader without any lock, even on SQLite."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            now = self._read_time(connection)
            yield Transaction(connection, now, self.pool, self.study_id, self._now)

    @contextmanager
    def single_statement(self, name: str = "") -> Iterator[tuple[sa.Connection, float | None]]:
        """A connection for one statement that reads the time itself.

        For frequent statements of every worker, where round trips cost time.

        Args:
            name: Of the transition, as for a transaction; the statement is its commit.
        """
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            crashpoint(f"{name}.commit")
            yield connection, None if self._now is None else self._now()
        crashpoint(f"{name}.committed")

    def _read_time(self, connection: sa.Connection) -> float:
        if self._now is not None:
            return self._now()
        sent = time.monotonic()
        now = float(connection.execute(sa.select(database_now())).scalar_one())
        self.clock.record_reading(now, sent, time.monotonic())
        return now

    def may_compare(self, seconds: float, doubt: float, unread: float) -> bool:
        """Whether the time may be compared with a time that was written so many seconds ago."""
        return self._now is not None or self.clock.is_reliable(seconds, doubt, unread)
