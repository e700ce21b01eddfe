"""A short transaction with the database's time, and the event log that each one feeds.

A transaction's events are written together, just before it commits: a round trip costs as much for
one of them as for all.

Time: SQL's is the database's, a process's is monotonic, and people's is the wall clock.

How long a transaction may last: a client that freezes inside one must not block others for long.

The limits travel as ``SET LOCAL`` with the statement that reads the time, in each transaction.
Start-up options would do on a direct connection, but pgbouncer refuses them; a ``SET`` at connect
time would stick to whichever server connection pgbouncer happened to use.
"""

from __future__ import annotations

import json
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
from optuna_deadline.allocation.sql.database import schema


class database_now(FunctionElement[float]):
    """Seconds since the epoch by the database's clock, read anew in each statement."""

    type = sa.Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite_now(element: database_now, compiler: SQLCompiler, **kwargs: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgres_now(element: database_now, compiler: SQLCompiler, **kwargs: object) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


#: Seconds that two readings may differ by beyond what their round trips explain.
CLOCK_TOLERANCE = 0.25


class ClockMonitor:
    """Whether the database's clock has run evenly of late, by the process's monotonic clock.

    A clock that is set forward makes every lease look expired while its holder still trains. So
    a reaper first watches the clock for as long as a lease and its grace last: what looks expired
    after that has not been renewed for so long, however the clock stood before. A process that was
    frozen has not watched: the clock may have been set back and forward again, and leases renewed
    in between look expired until they are renewed once more.
    """

    def __init__(self) -> None:
        self._offset: float | None = None  # the database's time less ours
        self._since = math.inf
        self._doubt = math.inf
        self._read = math.inf
        self._unread = 0.0  # the longest time between two readings since then

    def record_reading(self, now: float, sent: float, received: float) -> None:
        """Take a reading that was made between two instants of ours."""
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
        """Whether it ran evenly for so long, and the last reading leaves no larger doubt.

        Args:
            seconds: How long.
            doubt: Seconds that the last reading may have taken.
            unread: Seconds between two readings after which the watch begins again.
        """
        if self._unread > unread:
            self._since, self._unread = time.monotonic(), 0.0
        return self._doubt <= doubt and time.monotonic() - self._since >= seconds


#: A frozen client's session ends after this long; clients that wait for its rows continue then.
FROZEN_SECONDS = 0.8  # seconds
#: Longer than ``FROZEN_SECONDS``: waiting for a client that has just frozen is no error.
_LOCK = 2.0
_STATEMENT = 5.0
#: For a client that is slow rather than frozen.
_TRANSACTION = 10.0
_QUEUE = 60.0
_SINCE_17 = (17,)


def begin_bounded(
    connection: sa.Connection, *, statement: float = _STATEMENT, idle: float | None = None
) -> float:
    """Set the limits of the transaction that begins, and read the database's time.

    Args:
        connection: In a transaction that has done nothing yet.
        statement: Seconds for each statement; migrations need more.
        idle: Seconds between two statements, likewise; None for ``FROZEN_SECONDS``.
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
    """Let this transaction wait for a long queue, a frozen client for ``FROZEN_SECONDS`` only."""
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
    given: Callable[[], float] | None = None  #: a test's time in place of the database's
    _events: list[dict[str, object]] = field(default_factory=list)

    @property
    def latest(self) -> sa.ColumnElement[float]:
        """The time when a statement runs, which may be long after ``now``.

        A client stands still between two statements, and what was renewed meanwhile is not from
        the future.
        """
        return database_now() if self.given is None else sa.literal(self.given())

    def execute(self, statement: sa.Executable) -> Any:
        """Run one statement."""
        return self.connection.execute(statement)

    def rows(self, statement: sa.Select[Any] | sa.CompoundSelect[Any]) -> list[Any]:
        """Run a query."""
        return list(self.connection.execute(statement).all())

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
        """Note the audit line of this transition, for another study or pool where one is named."""
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
                "detail": json.dumps(detail),
            }
        )

    def write_events(self) -> None:
        """Send what was noted, in its order."""
        if self._events:
            # Not as one statement's VALUES: to compile a thousand rows takes longer than a client
            # may be silent in a transaction.
            self.connection.execute(sa.insert(schema.event), self._events)
            self._events.clear()


class Transactions:
    """Opens transactions on one pool and study; tests pass ``now`` in to drive time."""

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
        """A reader that takes no lock, not even SQLite's."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            now = self._read_time(connection)
            yield Transaction(connection, now, self.pool, self.study_id, self._now)

    @contextmanager
    def single_statement(self, name: str = "") -> Iterator[tuple[sa.Connection, float | None]]:
        """A connection for one statement that reads the time itself, and the test's time if any.

        For what every worker sends every few seconds: each round trip counts.

        Args:
            name: Of the transition, as of a transaction's; its statement is its commit.
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
        """Whether the time can be compared with what was written so many seconds ago."""
        return self._now is not None or self.clock.is_reliable(seconds, doubt, unread)
