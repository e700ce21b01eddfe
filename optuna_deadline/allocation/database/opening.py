"""Finds and opens the database with a study's table, once in a process."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from sqlalchemy.engine import URL, make_url

from optuna_deadline._optuna import behind_cache, storage_of
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.creation import create_or_check
from optuna_deadline.allocation.database.engine import (
    absolute,
    create,
    file_identity,
    file_of,
    limit,
)
from optuna_deadline.errors import UnsupportedStorage

if TYPE_CHECKING:
    from optuna.study import Study

_databases: dict[str, Database] = {}
_beside: weakref.WeakKeyDictionary[BaseStorage, URL] = weakref.WeakKeyDictionary()
_lock = threading.RLock()  # the garbage collector may close a database while one is opened


def given_url(storage: str | URL) -> URL:
    """The URL of ``storage=``, which stays the same wherever Python goes later.

    Raises:
        UnsupportedStorage: It is not a URL.
    """
    try:
        return absolute(storage)
    except sa.exc.ArgumentError:
        raise UnsupportedStorage(
            "storage= is not a database URL: write one such as sqlite:///table.db or "
            "postgresql://user@host/database."
        ) from None


def table_url(study: Study, storage: str | URL | None = None) -> URL:
    """The database with the table of ``study``.

    Args:
        study: Any Optuna study.
        storage: A separate database for the table, needed if the study's storage is not SQL.

    Raises:
        UnsupportedStorage: The storage has no usable database, and ``storage`` is not given.
    """
    if storage is not None:
        return given_url(storage)
    backend = behind_cache(storage_of(study))
    if isinstance(backend, RDBStorage) and backend.engine.dialect.name != "sqlite":
        return backend.engine.url
    if isinstance(backend, (RDBStorage, InMemoryStorage)):
        with _lock:
            if backend not in _beside:
                _beside[backend] = _own_file(backend) or _new_file(backend)
                weakref.finalize(backend, _close, _text(_beside[backend]))
            return _beside[backend]
    raise UnsupportedStorage(
        f"{type(backend).__name__} has no SQL database for the allocation table; use a SQLite or "
        "PostgreSQL storage, or name a database for the table with storage=URL."
    )


def is_of_one_thread(study: Study) -> bool:
    """Whether the study's storage is SQL in memory, of which each thread has another one."""
    backend = behind_cache(storage_of(study))
    in_sqlite = isinstance(backend, RDBStorage) and backend.engine.dialect.name == "sqlite"
    return in_sqlite and _own_file(backend) is None


def _own_file(backend: BaseStorage) -> URL | None:
    """The file of a storage, whose URL may name it only in the folder that Python was in."""
    if not isinstance(backend, RDBStorage) or (path := file_of(backend.engine)) is None:
        return None
    url = backend.engine.url
    return url.set(database=Path(path).as_uri() if "uri" in url.query else path)


def _new_file(backend: BaseStorage) -> URL:
    """A file for a storage in memory, of this process.

    One connection for all threads would let them wait for each other.
    """
    folder, mine = tempfile.mkdtemp(prefix="optuna-deadline-"), os.getpid()

    def remove() -> None:
        if os.getpid() == mine:  # not in a forked process
            shutil.rmtree(folder, ignore_errors=True)

    weakref.finalize(backend, remove)  # after `_close`: the last one is called first
    return make_url(f"sqlite:///{Path(folder) / 'table.db'}")


def _close(key: str) -> None:
    """Close a database of SQLite if no storage of this process is left that has its file.

    The garbage collector calls it in any thread, which must not wait for another one: then the
    database stays open.
    """
    if not _lock.acquire(blocking=False):
        return
    try:
        database = _databases.get(key)
        if database is not None and key not in map(_text, _beside.values()):
            disconnect(database)
    finally:
        _lock.release()


def open_table(study: Study, storage: str | URL | None = None) -> Database:
    """The database with the table of ``study``, opened at the first use.

    A storage on PostgreSQL connects again, with the limits of this package beside the arguments
    that it was made with, and so does the table.
    """
    backend = behind_cache(storage_of(study))
    given: Mapping[str, Any] = {}
    if isinstance(backend, RDBStorage):
        with _lock:
            limit(backend)
        if storage is None and backend.engine.dialect.name == "postgresql":
            given = backend.engine_kwargs
    return connect(table_url(study, storage), given)


def connect(url: str | URL, given: Mapping[str, Any] = MappingProxyType({})) -> Database:
    """A database with the tables of this package; the same one for the same URL.

    Args:
        url: The database.
        given: Arguments of the user's for ``sqlalchemy.create_engine``, on PostgreSQL.

    Raises:
        UnsupportedStorage: The URL is neither SQLite nor PostgreSQL, or SQLite is too old.
        SchemaMismatch: Another version of the package created the tables.
    """
    url = absolute(url)
    with _lock:
        known = _opened(url)
        if known is None:
            engine = create(url, given)
            try:
                create_or_check(engine)
            except BaseException:
                engine.dispose()
                raise
            known = _databases[_text(url)] = Database(engine)
        return known


def opened_table(study: Study, storage: str | URL | None = None) -> Database | None:
    """The database with the table of ``study`` if this process already uses it."""
    own = storage_of(study)
    if storage is None and isinstance(own, InMemoryStorage) and own not in _beside:
        return None
    try:
        url = table_url(study, storage)
    except UnsupportedStorage:
        return None
    with _lock:
        return _opened(url)


def _opened(url: URL) -> Database | None:
    """The open database of a URL; one whose file was replaced is closed."""
    database = _databases.get(_text(url))
    if database is not None and file_identity(url) not in (None, database.file):
        disconnect(database)
        return None
    return database


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def disconnect(database: Database) -> None:
    """Close a database's connections and forget it; the next :func:`connect` opens it again."""
    with _lock:
        for key in [key for key, known in _databases.items() if known is database]:
            del _databases[key]
    database.engine.dispose()
