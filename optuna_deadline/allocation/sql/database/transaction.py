"""A short transaction with the database's time, and the event log that each one feeds.

A transaction's events are written together, just before it commits: a round trip costs as much for
one of them as for all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.sql.database import schema
from optuna_deadline.allocation.sql.database.bounds import begin_bounded
from optuna_deadline.allocation.sql.database.clock import EvenClock, database_now


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
        self.clock = EvenClock()
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
                self.clock.note(now, sent, time.monotonic())
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
    def glancing(self, name: str = "") -> Iterator[tuple[sa.Connection, float | None]]:
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
        self.clock.note(now, sent, time.monotonic())
        return now

    def may_compare(self, seconds: float, doubt: float) -> bool:
        """Whether the time can be compared with what was written so many seconds ago."""
        return self._now is not None or self.clock.vouches(seconds, doubt)
