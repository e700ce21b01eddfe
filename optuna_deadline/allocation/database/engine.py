"""Makes engines with the limits of this package, for the table and for Optuna's storage."""

from __future__ import annotations

import os
import select
import sqlite3
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import WeakSet

import sqlalchemy as sa
from optuna.storages import BaseStorage, RDBStorage, get_storage
from sqlalchemy.engine import URL, make_url

from optuna_deadline._optuna import connect_again
from optuna_deadline.errors import UnsupportedStorage

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
FileIdentity: TypeAlias = tuple[int, int]
_CHECKED: WeakSet[sa.Engine] = WeakSet()
_PARENTS: list[sa.Pool] = []  # in a forked process; closed there, they would end in the parent
_DRIVERS: dict[str, dict[str, Any]] = {
    "psycopg2": _NETWORK,
    # Behind a pooler, the next transaction may get a session without the prepared statement.
    "psycopg": {**_NETWORK, "prepare_threshold": None},
}


def storage_at(url: str, *, cached: bool = True) -> BaseStorage:
    """Optuna's storage at a URL, on connections with the limits of this package.

    Args:
        url: SQLite or PostgreSQL.
        cached: Keep what has ended in memory, as Optuna does for a URL.
    """
    storage = RDBStorage(url, engine_kwargs=_options(make_url(url), {}))
    _check_connections(storage.engine)
    return get_storage(storage) if cached else storage


def absolute(url: str | URL) -> URL:
    """A URL, with the whole path of a SQLite file: ``os.chdir`` does not change what it names."""
    url = make_url(url)
    if url.get_backend_name() == "sqlite" and (name := _path_in(url)) is not None:
        url = url.set(database=os.path.abspath(name))
    return url


def file_of(engine: sa.Engine) -> str | None:
    """The whole path of the file that an engine of SQLite has open; None for one in memory."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql("PRAGMA database_list").all()
    return next((file for _, name, file in found if name == "main" and file), None)


def file_identity(url: URL) -> FileIdentity | None:
    """What differs once a file was replaced; None if there is no file, or no whole path."""
    name = _path_in(url) if url.get_backend_name() == "sqlite" else None
    try:
        return None if name is None else _identity(name)
    except OSError:
        return None


def _identity(path: str) -> FileIdentity:
    file = os.stat(path)
    return file.st_dev, file.st_ino


def _path_in(url: URL) -> str | None:
    """The path that a URL of SQLite has; None for one in memory, and for a URI of SQLite."""
    name = url.database or ":memory:"
    return None if name.startswith((":memory:", "file:")) else name


def limit(storage: RDBStorage) -> None:
    """Let connections of Optuna's storage have the limits of this package.

    On PostgreSQL, it connects again.
    """
    if storage.engine.dialect.name != "postgresql":
        _check_connections(storage.engine, begun=True)
        return
    options = _options(storage.engine.url, storage.engine_kwargs)
    if options == storage.engine_kwargs:
        return
    connect_again(storage, options)
    _check_connections(storage.engine)


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


def create(url: URL, given: Mapping[str, Any] = MappingProxyType({})) -> sa.Engine:
    """As :func:`connect`, but no table is created."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        return _sqlite(url)
    if backend == "postgresql":
        options = {**_options(url, given), "pool_pre_ping": True, "isolation_level": None}
        return _begin_by_statement(_check_connections(sa.create_engine(url, **options)))
    raise UnsupportedStorage(
        f"The table works on SQLite and PostgreSQL, not on {backend}; name one with storage=URL."
    )


def _options(url: URL, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``create_engine``: the limits of this package, unless a user gave others."""
    ours: dict[str, Any] = {}
    limits: dict[str, Any] = {"timeout": _SQLITE_PATIENCE}
    if url.get_backend_name() != "sqlite":
        ours, limits = _SESSIONS, _DRIVERS.get(url.get_driver_name(), {})
    limits = {name: value for name, value in limits.items() if name not in url.query}
    return {**ours, **given, "connect_args": {**limits, **given.get("connect_args", {})}}


def _check_connections(engine: sa.Engine, *, begun: bool = False) -> sa.Engine:
    """Let an engine notice at little cost that a connection of its pool is of no use.

    Args:
        engine: The engine.
        begun: Whether it was used before, when Python may have been in another folder.
    """
    if engine in _CHECKED:
        return engine
    _CHECKED.add(engine)
    if engine.dialect.name == "postgresql":
        _ping_if_readable(engine)
    elif engine.dialect.name == "sqlite":
        _refuse_deleted_file(engine, begun)
    return engine


def _connect_anew() -> None:
    """Leave the connections that a process has inherited to its parent."""
    for engine in list(_CHECKED):
        _PARENTS.append(engine.pool)
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_connect_anew)


def _refuse_deleted_file(engine: sa.Engine, begun: bool) -> None:
    """Raise an error for a file that was deleted, and connect again to one that was replaced.

    SQLite would go on in the file without a name on old connections, and on new ones make an
    empty file.
    """
    name = _path_in(engine.url)
    if name is None:
        return
    path, seen = (file_of(engine) if begun else None) or os.path.abspath(name), False

    def look() -> FileIdentity | None:
        nonlocal seen
        try:
            file = _identity(path)
        except (FileNotFoundError, NotADirectoryError):
            if seen:
                raise sqlite3.OperationalError(f"the file {path} was deleted") from None
            return None  # SQLite makes a new database
        except OSError:  # SQLite says what is wrong
            return None
        seen = True
        return file

    @sa.event.listens_for(engine, "do_connect")
    def _look(*_: Any) -> None:
        look()

    @sa.event.listens_for(engine, "checkout")
    def _compare(_connection: Any, record: Any, _proxy: Any) -> None:
        if (file := look()) is not None and record.info.setdefault("file", file) != file:
            raise sa.exc.DisconnectionError(f"The file {path} was replaced.")


def _ping_if_readable(engine: sa.Engine) -> None:
    """Ping a connection to PostgreSQL only if there is something to read on it.

    A server that has closed a connection has sent that, so an idle socket with nothing to read is
    open, and no round trip is needed. If a peer has vanished silently, the ping would wait as long
    as the next statement.
    """
    ping = engine.dialect.do_ping

    def quick(connection: Any) -> bool:
        poll = select.poll()  # not select(), which rejects descriptors above 1,023
        poll.register(connection.fileno(), select.POLLIN)
        return ping(connection) if poll.poll(0) else True

    engine.dialect.do_ping = quick  # type: ignore[method-assign,assignment]


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
    engine = _check_connections(sa.create_engine(url, connect_args={"timeout": _SQLITE_PATIENCE}))

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
            gone = connection.invalidated and statement == "ROLLBACK"  # nothing to undo there
            if not gone and not connection.get_execution_options().get(_ALONE):
                connection.exec_driver_sql(statement)

        return listener

    sa.event.listen(engine, "begin", send(BEGIN[engine.dialect.name]))
    if engine.dialect.name == "postgresql":  # SQLite's driver sends the ends itself
        sa.event.listen(engine, "commit", send("COMMIT"))
        sa.event.listen(engine, "rollback", send("ROLLBACK"))
    return engine
