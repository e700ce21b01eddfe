"""The database in memory, for simulations and tests: SQLite, with the time given."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.creation import create_or_check
from optuna_deadline.allocation.database.text import translated
from optuna_deadline.allocation.database.transaction import Params, Scope, Transaction


class MemoryDatabase(Database):
    """A database that only this process sees, with one connection for all threads.

    Its workers may name any host. A transition takes some ten microseconds.
    """

    def __init__(self) -> None:
        self.connection = sqlite3.connect(
            ":memory:", isolation_level=None, cached_statements=256, check_same_thread=False
        )
        _empty().backup(self.connection)
        self.connection.execute("PRAGMA foreign_keys=ON")
        engine = sa.create_engine(
            "sqlite://", creator=lambda: self.connection, poolclass=sa.pool.StaticPool
        )
        super().__init__(engine)
        self.one_host = False
        self.tolerance = 1e300  # simulated workers renew far ahead
        self.execute = self.connection.cursor().execute
        self.lock = threading.RLock()
        self.answers = _Answers()

    def begin(
        self, scope: Scope, name: str, queue: int | None = None, idle: float = 0.0
    ) -> AbstractContextManager[Transaction]:
        """Begin, yield, commit; roll back on any error."""
        return _Opened(self, scope, atomic=True)

    def each_alone(self, scope: Scope, name: str = "") -> AbstractContextManager[Transaction]:
        """Statements of which each is its own transaction."""
        return _Opened(self, scope, atomic=False)

    def forget(self) -> None:
        """Forget the answers, once rows have changed by another door."""
        self.answers.forget()


class _Opened:
    """Holds the connection; a class of its own, since a simulation opens ten thousand."""

    __slots__ = ("_atomic", "_database", "_scope", "_tx")

    def __init__(self, database: MemoryDatabase, scope: Scope, *, atomic: bool) -> None:
        self._database, self._scope, self._atomic = database, scope, atomic

    def __enter__(self) -> Transaction:
        if self._scope.given is None:
            raise ValueError("A table in memory needs the time: give it now=.")
        database = self._database
        database.lock.acquire()
        now = self._scope.given()
        self._tx = _Remembering(database.execute, self._scope, now, database.answers)
        if self._atomic:
            database.execute("BEGIN")
        return self._tx

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        database = self._database
        try:
            if self._atomic and kind is None:
                database.written += self._tx.write_events()
                database.execute("COMMIT")
        finally:
            if database.connection.in_transaction and self._atomic:
                database.execute("ROLLBACK")
                database.answers.forget()
            database.lock.release()


@cache
def _empty() -> sqlite3.Connection:
    """A database with empty tables: to copy it takes a fraction of the time of creating them."""
    made = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    create_or_check(
        sa.create_engine("sqlite://", creator=lambda: made, poolclass=sa.pool.StaticPool)
    )
    return made


class _Answers:
    """The rows of queries, until a table that they read changes."""

    def __init__(self) -> None:
        self._rows: dict[Any, list[Any]] = {}
        self._of_table: dict[str, set[Any]] = {}  # keys
        self.get = self._rows.get

    def put(self, key: Any, tables: tuple[str, ...], rows: list[Any]) -> None:
        self._rows[key] = rows
        for table in tables:
            self._of_table.setdefault(table, set()).add(key)

    def forget(self, *tables: str) -> None:
        """Forget what reads one of these tables; without any, all."""
        for table in tables or tuple(self._of_table):
            for key in self._of_table.pop(table, ()):
                self._rows.pop(key, None)


class _Remembering(Transaction):
    """A transaction that repeats known answers: planners ask the same again and again."""

    def __init__(self, execute: Any, scope: Scope, now: float, answers: _Answers) -> None:
        super().__init__(execute, scope, now, postgresql=False)
        self._always["latest"] = now
        self._answers = answers

    def _execute(self, text: str, params: Params) -> Any:
        sql, _, changed = _known(text)
        if changed:
            self._answers.forget(*changed)
        try:
            return self._run(sql, {**self._always, **params})
        except sqlite3.Error as error:
            raise sa.exc.DBAPIError.instance(sql, params, error, sqlite3.Error) from error

    def rows(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        """All rows of a query, or of a change that returns some."""
        _, tables, _ = _known(text)
        if not tables:
            return super().rows(text, **params)
        key = (text, self.pool, self.study, *params.values())
        found = self._answers.get(key)
        if found is None:
            found = super().rows(text, **params)
            self._answers.put(key, tables, found)
        return found


@cache
def _known(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A statement for SQLite, the tables that it only reads, and those that it changes."""
    return translated(text, postgresql=False, given=True), _read(text), _changed(text)


def _read(text: str) -> tuple[str, ...]:
    """The tables of a query; none if its answer depends on the time, or if it changes rows."""
    if not text.startswith("SELECT") or re.search(r"\bNOW\b|:now\b", text):
        return ()
    return tuple(sorted(set(re.findall(r"@(\w+)", text))))


def _changed(text: str) -> tuple[str, ...]:
    """The tables whose rows a statement changes, with those that follow their deletion."""
    found = re.match(r"(UPDATE|INSERT INTO|DELETE FROM) @(\w+)", text)
    if found is None:
        return ()
    names = [found[2]]
    for name in names if found[1] == "DELETE FROM" else ():
        names += [
            table.name.removeprefix(schema.PREFIX)
            for table in schema.metadata.sorted_tables
            for key in table.foreign_keys
            if key.column.table.name == schema.PREFIX + name
        ]
    return tuple(names)
