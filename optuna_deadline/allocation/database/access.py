"""Opens transactions on a database: PostgreSQL or a SQLite file, by SQLAlchemy's engine.

SQLAlchemy connects, keeps the pool of connections and names the driver's errors; statements run on
the driver itself. To build them as expressions takes ten to thirty times as long as SQLite needs
to run them.

Connections are in autocommit, and a transaction begins by a statement. On PostgreSQL, a statement
that is its own transaction is sent together with its limits, in one message, so no client can
freeze inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import sqlalchemy as sa

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.database import limits
from optuna_deadline.allocation.database.checked_columns import unknown_content
from optuna_deadline.allocation.database.clock import ClockMonitor, uptime
from optuna_deadline.allocation.database.engine import BEGIN, file_identity
from optuna_deadline.allocation.database.text import translated
from optuna_deadline.allocation.database.transaction import Params, Scope, Transaction
from optuna_deadline.allocation.rules import CLOCK_TOLERANCE

#: The queue of those that register: each waits for all before it.
REGISTRATION = 0x0D_EAD_115
Listener = Callable[[str, Params, Any], None]
_listeners: list[Listener] = []
_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
_TIME = "SELECT CAST(NOW AS DOUBLE PRECISION)"


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call a listener after each statement, with it, its parameters and the cursor.

    For tests and measurements: SQLAlchemy's own events do not know these statements.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Database:
    """A database of the table.

    Args:
        engine: From :func:`~optuna_deadline.allocation.database.engine.create`.

    Attributes:
        engine: The engine.
        postgresql: Whether it is PostgreSQL, else SQLite.
        one_host: Whether it serves workers of one host only.
        tolerance: Seconds by which a lease may end later than a new one. One that ends later than
            that is from before the clock was set back.
        file: Which file of SQLite it is; None for any other database.
        clock: Watches the database's clock.
        written: The events that this process has written.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.file = file_identity(engine.url)
        self.postgresql = engine.dialect.name == "postgresql"
        self.one_host = not self.postgresql
        self.tolerance = CLOCK_TOLERANCE
        self.clock = ClockMonitor()
        self.written = 0

    @property
    def url(self) -> sa.URL:
        """The URL; as text, it has no password."""
        return self.engine.url

    def begin(
        self, scope: Scope, name: str, queue: int | None = None, idle: float = 0.0
    ) -> AbstractContextManager[Transaction]:
        """Begin, yield, commit; roll back on any error.

        Args:
            scope: The pool and the study.
            name: Of the transition; ``NAME.commit`` and ``NAME.committed`` are its crash points.
            queue: A queue in which to wait for all others first. SQLite needs none, since one
                client writes at a time.
            idle: Seconds between two statements; 0 for those of a frozen client.
        """
        return self._begun(scope, name, queue, idle)

    @contextmanager
    def _begun(
        self, scope: Scope, name: str, queue: int | None, idle: float
    ) -> Iterator[Transaction]:
        with self._connection() as connection:
            try:
                sent = uptime()
                now = self._send_begin(connection, idle)
                if scope.given is not None:
                    now = scope.given()
                else:
                    self.clock.record_reading(now, sent, uptime())
                if queue is not None and self.postgresql:
                    now = self._wait_in_line(connection, queue, scope)
                tx = Transaction(connection.execute, scope, now, self.postgresql)
                yield tx
                self.written += tx.write_events()
                crashpoint(f"{name}.commit")
                connection.execute("COMMIT")
            except BaseException:
                connection.roll_back()
                raise
        crashpoint(f"{name}.committed")

    def each_alone(self, scope: Scope, name: str = "") -> AbstractContextManager[Transaction]:
        """Statements of which each is its own transaction; a query locks nothing, even on SQLite.

        Args:
            scope: The pool and the study.
            name: As for :meth:`begin`, if the one statement writes.
        """
        return self._alone(scope, name)

    @contextmanager
    def _alone(self, scope: Scope, name: str) -> Iterator[Transaction]:
        with self._connection() as connection:
            execute = self._limited(connection) if self.postgresql else connection.execute
            crashpoint(f"{name}.commit")
            now = 0.0 if scope.given is None else scope.given()
            yield Transaction(execute, scope, now, self.postgresql)
        crashpoint(f"{name}.committed")

    def now(self) -> float:
        """The database's time."""
        with self._connection() as connection:
            sent = uptime()
            now = self._read_time(connection)
            self.clock.record_reading(now, sent, uptime())
            return now

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        try:
            pooled = self.engine.raw_connection()
        except self.engine.dialect.loaded_dbapi.Error as error:
            raise _named(self.engine, error) from error
        connection = _Connection(self.engine, pooled)
        try:
            yield connection
        except Exception:
            raise
        except BaseException as error:  # in the middle of anything
            connection.drop(error)
            raise
        finally:
            connection.give_back()

    def _send_begin(self, connection: _Connection, idle: float) -> float:
        if not self.postgresql:
            connection.execute(BEGIN["sqlite"])
            return self._read_time(connection)
        bounds = limits.of_transaction(self.engine.dialect, idle=idle)
        return self._read_time(connection, f"{BEGIN['postgresql']}; {_TIME}, {bounds}")

    def _read_time(self, connection: _Connection, text: str = _TIME) -> float:
        sql = translated(text, self.postgresql, given=False)
        return float(connection.execute(sql).fetchone()[0])

    def _wait_in_line(self, connection: _Connection, queue: int, scope: Scope) -> float:
        """Wait in a queue; writes after that have the time at which the wait ended."""
        connection.execute(f"SELECT {limits.of_queue(self.engine.dialect)}")
        connection.execute(f"SELECT pg_advisory_xact_lock({queue})")
        return self._read_time(connection) if scope.given is None else scope.given()

    def _limited(self, connection: _Connection) -> Callable[[str, Params], Any]:
        bounds = f"{_COMMITTED}; SELECT {limits.of_statement()}; "
        return lambda sql, params: connection.execute(bounds + sql, params)


class _Connection:
    """A connection of the engine's pool in autocommit, whose errors are SQLAlchemy's."""

    def __init__(self, engine: sa.Engine, pooled: Any) -> None:
        self._engine, self._dialect, self._pooled = engine, engine.dialect, pooled
        self._driver: Any = pooled.dbapi_connection
        self._many = engine.dialect.driver == "psycopg"  # its cursor shows the first result
        if self._dialect.name == "postgresql" and not self._driver.autocommit:
            self._driver.autocommit = True
        self._cursor = self._open()

    def _open(self) -> Any:
        if not self._many:
            return self._driver.cursor()
        from psycopg import ClientCursor  # as psycopg2: several statements in one message

        return ClientCursor(self._driver)

    def execute(self, sql: str, params: Params | None = None) -> Any:
        """Run a statement; returns the cursor with its result."""
        try:
            self._cursor.execute(sql, params or {})
            while self._many and self._cursor.nextset():
                pass
        except OverflowError:  # of SQLite's driver
            raise unknown_content("a number of more than 64 bits") from None
        except self._dialect.loaded_dbapi.Error as error:
            gone = self._dialect.is_disconnect(error, self._driver, self._cursor)
            if gone:
                self.drop(error)
            raise _named(self._engine, error, sql, params, gone) from error
        for listener in _listeners:
            listener(sql, params or {}, self._cursor)
        return self._cursor

    def roll_back(self) -> None:
        """Undo what the transaction has changed; a connection that fails here is closed."""
        try:
            self._cursor.execute("ROLLBACK")
        except Exception as error:
            self.drop(error)

    def drop(self, error: BaseException) -> None:
        """Close the connection, and leave its place in the pool to a new one."""
        if self._pooled.is_valid:
            self._pooled.invalidate(error if isinstance(error, Exception) else None)

    def give_back(self) -> None:
        """Return the connection to the pool."""
        with suppress(self._dialect.loaded_dbapi.Error):
            self._pooled.close()


def _named(
    engine: sa.Engine,
    error: Exception,
    sql: str | None = None,
    params: Params | None = None,
    gone: bool = False,
) -> BaseException:
    """SQLAlchemy's error for one of the driver."""
    return sa.exc.DBAPIError.instance(
        sql, params, error, engine.dialect.loaded_dbapi.Error, engine.hide_parameters, gone,
        engine.dialect,
    )  # fmt: skip
