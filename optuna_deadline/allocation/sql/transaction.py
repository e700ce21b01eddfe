"""Transactions by SQLAlchemy's expressions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.checked_columns import unknown_content
from optuna_deadline.allocation.database.clock import ClockMonitor
from optuna_deadline.allocation.database.limits import begin_bounded, database_now


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
