"""A transaction on one pool and study: statements as text, the database's time, and events.

Times in SQL are the database's; a process uses its monotonic clock, and texts for users the wall
clock. A transaction writes its events together just before it commits, in one round trip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna_deadline.allocation.database.notify import channel
from optuna_deadline.allocation.database.text import listed, translated

Params = dict[str, Any]
Execute = Callable[[str, Params], Any]
_NOTIFIED = 8  #: the most workers that are notified one by one; beyond it, all workers poll


@dataclass
class Scope:
    """Where a transaction works.

    Attributes:
        pool: The pool's name.
        study_id: The study.
        given: The time in seconds, if a test or a simulation sets it; else the database's.
    """

    pool: str
    study_id: int
    given: Callable[[], float] | None = None


class Transaction:
    """A transaction, or a connection in which each statement is one.

    Args:
        execute: Runs a translated statement; returns the driver's cursor.
        scope: The pool and the study.
        now: The time at which it began.
        postgresql: Whether the database is PostgreSQL.

    Attributes:
        now: The database's time at which it began.
        pool: The pool's name.
        study: The study's id.
        postgresql: Whether the database is PostgreSQL.
        clock: The time as a column; where it is given, the answer does not depend on it.
    """

    def __init__(self, execute: Execute, scope: Scope, now: float, postgresql: bool) -> None:
        self.now, self.pool, self.study = now, scope.pool, scope.study_id
        self.postgresql = postgresql
        self.clock = "NOW" if scope.given is None else "NULL"
        self._run, self._given = execute, scope.given
        self._always: Params = {"now": now, "pool": scope.pool, "study": scope.study_id}
        self._events: list[tuple[Any, ...]] = []

    def _execute(self, text: str, params: Params) -> Any:
        if self._given is not None:  # long after ``now`` if the client was frozen
            self._always["latest"] = self._given()
        sql = translated(text, self.postgresql, self._given is not None)
        return self._run(sql, {**self._always, **params})

    def time_of(self, read: float | None) -> float:
        """The time that the column :attr:`clock` has shown, or that is given."""
        return self._given() if read is None and self._given is not None else float(read or 0.0)

    def rows(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        """All rows of a query, or of a change that returns some."""
        found: list[tuple[Any, ...]] = self._execute(text, params).fetchall()
        return found

    def row(self, text: str, **params: Any) -> tuple[Any, ...] | None:
        """The first row; None if there is none."""
        found = self.rows(text, **params)
        return found[0] if found else None

    def value(self, text: str, **params: Any) -> Any:
        """The first value of the first row; None if there is none."""
        found = self.rows(text, **params)
        return found[0][0] if found else None

    def run(self, text: str, **params: Any) -> int:
        """Change rows; returns their number."""
        return int(self._execute(text, params).rowcount)

    def insert(
        self, table: str, rows: Iterable[Mapping[str, Any]], *, unless_there: bool = False
    ) -> None:
        """Add rows, given by column.

        Args:
            table: The table's name.
            rows: The rows.
            unless_there: Leave a row as it is that has the same key.
        """
        end = " ON CONFLICT DO NOTHING" if unless_there else ""
        for row in rows:
            columns = ", ".join(row)
            values = ", ".join([f":{name}" for name in row])
            self.run(f"INSERT INTO @{table} ({columns}) VALUES ({values}){end}", **row)

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
        study = self.study if study_id is None else study_id
        self._events.append(
            (pool or self.pool, study, kind, number, slot, fence, term, worker, json.dumps(detail))
        )

    def write_events(self) -> int:
        """Write the events in their order, in one statement; returns their number."""
        events, self._events = self._events, []
        if events:
            self._execute(_EVENTS, {"rows": listed(events)})
        return len(events)

    def notify(self, workers: Iterable[str | None] | None = None) -> None:
        """Notify listeners of the pool when this commits; a hint, on PostgreSQL only.

        Args:
            workers: The workers to notify, possibly none; None for all of the pool.
        """
        if not self.postgresql:
            return
        named = sorted({worker for worker in workers or () if worker is not None})
        if workers is not None and not named:
            return
        channels = [channel(self.pool, worker) for worker in named]
        if not 0 < len(channels) <= _NOTIFIED:
            channels = [channel(self.pool)]
        self._execute(_NOTIFY, {"channels": listed(channels)})


_EVENTS = (
    "INSERT INTO @event (at, pool, study_id, kind, number, slot, fence, term, worker, detail) "
    "SELECT :now, value ->> 0, CAST(value ->> 1 AS INTEGER), value ->> 2, "
    "CAST(value ->> 3 AS INTEGER), CAST(value ->> 4 AS INTEGER), CAST(value ->> 5 AS BIGINT), "
    "CAST(value ->> 6 AS BIGINT), value ->> 7, value ->> 8 FROM rows(:rows)"
)
_NOTIFY = (
    "SELECT pg_notify(name, '') FROM json_array_elements_text(CAST(:channels AS json)) AS name"
)
