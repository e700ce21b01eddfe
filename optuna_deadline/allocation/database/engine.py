"""Connections to the database: one engine for the table, one for Optuna's storage."""

from __future__ import annotations

import select
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage, get_storage
from sqlalchemy.engine import URL, make_url

from optuna_deadline._optuna import behind_cache, connect_again, storage_of
from optuna_deadline.allocation.database.creation import create_or_check
from optuna_deadline.errors import UnsupportedStorage

if TYPE_CHECKING:
    from optuna.study import Study

_engines: dict[str, sa.Engine] = {}
_in_memory: weakref.WeakKeyDictionary[BaseStorage, str] = weakref.WeakKeyDictionary()
_lock = threading.Lock()

_SQLITE = (3, 38)  # for ``->>`` and ``UPDATE ... FROM``
_SQLITE_PATIENCE = 30.0  # seconds
#: A peer that acknowledges nothing is dropped; TCP alone would retry for a quarter of an hour.
_NETWORK = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,  # milliseconds
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
#: Of Optuna's storage on PostgreSQL. The locks must see what the one before has committed.
_SESSIONS = {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
#: How transactions of the table begin; likewise.
BEGIN = {
    "postgresql": "BEGIN ISOLATION LEVEL READ COMMITTED",
    # At the first write only, updates would be lost.
    "sqlite": "BEGIN IMMEDIATE",
}
_ALONE = "optuna_deadline_alone"
_DRIVERS: dict[str, dict[str, Any]] = {
    "psycopg2": _NETWORK,
    # Behind a pooler, the next transaction may get a session without the prepared statement.
    "psycopg": {**_NETWORK, "prepare_threshold": None},
}


def table_url(study: Study, table: str | None = None) -> URL:
    """The database with the table of ``study``.

    Args:
        study: Any Optuna study.
        table: A separate database for the table, needed if the study's storage is not SQL.

    Raises:
        UnsupportedStorage: The storage has no usable database, and ``table`` is not given.
    """
    if table is not None:
        try:
            return make_url(table)
        except sa.exc.ArgumentError:
            raise UnsupportedStorage(
                "table= is not a database URL: write one such as sqlite:///table.db or "
                "postgresql://user@host/database."
            ) from None
    backend = behind_cache(storage_of(study))
    if isinstance(backend, RDBStorage):
        return backend.engine.url
    if isinstance(backend, InMemoryStorage):
        # A separate file per process: one connection shared by threads would serialise them.
        with _lock:
            if backend not in _in_memory:
                folder = tempfile.TemporaryDirectory(prefix="optuna-deadline-")
                weakref.finalize(backend, folder.cleanup)
                _in_memory[backend] = f"sqlite:///{Path(folder.name) / 'table.db'}"
            return make_url(_in_memory[backend])
    raise UnsupportedStorage(
        f"{type(backend).__name__} has no SQL database for the allocation table; use a SQLite or "
        "PostgreSQL storage, or name a database for the table with table=URL."
    )


def open_table(study: Study, table: str | None = None) -> sa.Engine:
    """The engine of the table of ``study``, created at the first use.

    A storage on PostgreSQL connects again, with the limits of this package beside the arguments
    that it was made with, and so does the table.
    """
    backend = behind_cache(storage_of(study))
    given: Mapping[str, Any] = {}
    if isinstance(backend, RDBStorage) and backend.engine.dialect.name == "postgresql":
        with _lock:
            _limit(backend)
        given = {} if table is not None else backend.engine_kwargs
    return connect(table_url(study, table), given)


def storage_at(url: str, *, cached: bool = True) -> BaseStorage:
    """Optuna's storage at a URL, on connections with the limits of this package.

    Args:
        url: SQLite or PostgreSQL.
        cached: Keep what has ended in memory, as Optuna does for a URL.
    """
    storage = RDBStorage(url, engine_kwargs=_options(make_url(url), {}))
    _ping_if_readable(storage.engine)
    return get_storage(storage) if cached else storage


def _limit(storage: RDBStorage) -> None:
    options = _options(storage.engine.url, storage.engine_kwargs)
    if options == storage.engine_kwargs:
        return
    connect_again(storage, options)
    _ping_if_readable(storage.engine)


def existing_engine(study: Study, table: str | None = None) -> sa.Engine | None:
    """The engine of the table of ``study`` if this process already uses one."""
    storage = storage_of(study)
    if table is None and isinstance(storage, InMemoryStorage) and storage not in _in_memory:
        return None
    try:
        url = table_url(study, table)
    except UnsupportedStorage:
        return None
    with _lock:
        return _engines.get(url.render_as_string(hide_password=False))


def connect(url: str | URL, given: Mapping[str, Any] = MappingProxyType({})) -> sa.Engine:
    """An engine with the pragmas and timeouts of this package, and the tables of this package.

    Args:
        url: The database.
        given: Arguments of the user's for ``sqlalchemy.create_engine``, on PostgreSQL.

    Raises:
        UnsupportedStorage: The URL is neither SQLite nor PostgreSQL, or SQLite is too old.
        SchemaMismatch: Another version of the package created the tables.
    """
    url = make_url(url)
    key = url.render_as_string(hide_password=False)
    with _lock:
        if key not in _engines:
            engine = create(url, given)
            create_or_check(engine)
            _engines[key] = engine
        return _engines[key]


def has_table(url: str | URL, name: str) -> bool:
    """Whether a database has a table; the check changes nothing."""
    url = make_url(url)
    # On SQLite without the pragmas, because the file keeps one of them.
    bare = url.get_backend_name() == "sqlite"
    engine = sa.create_engine(url) if bare else create(url)
    try:
        return sa.inspect(engine).has_table(name)
    finally:
        engine.dispose()


def autocommit(engine: sa.Engine) -> sa.Connection:
    """A connection that sends no BEGIN and no COMMIT."""
    return engine.connect().execution_options(**{_ALONE: True})


def disconnect(engine: sa.Engine) -> None:
    """Close the engine's connections and forget it; the next :func:`connect` creates a new one."""
    with _lock:
        for key in [key for key, known in _engines.items() if known is engine]:
            del _engines[key]
    engine.dispose()


def create(url: URL, given: Mapping[str, Any] = MappingProxyType({})) -> sa.Engine:
    """As :func:`connect`, but no table is created."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        return _sqlite(url)
    if backend == "postgresql":
        options = {**_options(url, given), "pool_pre_ping": True, "isolation_level": None}
        return _begin_by_statement(_ping_if_readable(sa.create_engine(url, **options)))
    raise UnsupportedStorage(
        f"The table works on SQLite and PostgreSQL, not on {backend}; name one with table=URL."
    )


def _options(url: URL, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``create_engine``: the limits of this package, unless a user gave others."""
    ours: dict[str, Any] = {}
    limits: dict[str, Any] = {"timeout": _SQLITE_PATIENCE}
    if url.get_backend_name() != "sqlite":
        ours, limits = _SESSIONS, _DRIVERS.get(url.get_driver_name(), {})
    limits = {name: value for name, value in limits.items() if name not in url.query}
    return {**ours, **given, "connect_args": {**limits, **given.get("connect_args", {})}}


def _ping_if_readable(engine: sa.Engine) -> sa.Engine:
    """Ping a connection to PostgreSQL only if there is something to read on it.

    A server that has closed a connection has sent that, so an idle socket with nothing to read is
    open, and no round trip is needed. If a peer has vanished silently, the ping would wait as long
    as the next statement.
    """
    if engine.dialect.name != "postgresql":
        return engine
    ping = engine.dialect.do_ping

    def quick(connection: Any) -> bool:
        said = select.poll()  # not select(), which rejects descriptors above 1,023
        said.register(connection.fileno(), select.POLLIN)
        return ping(connection) if said.poll(0) else True

    engine.dialect.do_ping = quick  # type: ignore[method-assign,assignment]
    return engine


def _write_ahead(connection: Any) -> None:
    # Changing the mode needs the file exclusively, and SQLite does not wait for that.
    until = time.monotonic() + _SQLITE_PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _sqlite(url: URL) -> sa.Engine:
    if sqlite3.sqlite_version_info < _SQLITE:
        raise UnsupportedStorage(
            f"The table needs SQLite 3.38 or newer, and Python has {sqlite3.sqlite_version} here: "
            "use a newer Python, or PostgreSQL."
        )
    engine = sa.create_engine(url, connect_args={"timeout": _SQLITE_PATIENCE})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    return _begin_by_statement(engine)


def _begin_by_statement(engine: sa.Engine) -> sa.Engine:
    """Keep the driver in autocommit, and let a transaction begin and end by statements.

    To set autocommit for each statement that is alone would take two round trips.
    """

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        if engine.dialect.name == "sqlite":
            connection.isolation_level = None
        else:
            connection.autocommit = True

    def send(statement: str) -> Callable[[sa.Connection], None]:
        def listener(connection: sa.Connection) -> None:
            if not connection.get_execution_options().get(_ALONE):
                connection.exec_driver_sql(statement)

        return listener

    sa.event.listen(engine, "begin", send(BEGIN[engine.dialect.name]))
    if engine.dialect.name == "postgresql":  # SQLite's driver sends the ends itself
        sa.event.listen(engine, "commit", send("COMMIT"))
        sa.event.listen(engine, "rollback", send("ROLLBACK"))
    return engine
