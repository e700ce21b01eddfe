"""Open databases and studies for the commands, and estimate how late plans see reports.

Commands that only read create nothing. Commands that create may run at the same time.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import optuna
import sqlalchemy as sa
from optuna.storages import BaseStorage
from optuna.study import Study
from sqlalchemy.engine import URL, make_url

from optuna_deadline._printable import printable
from optuna_deadline.allocation.database.engine import has_table, storage_at
from optuna_deadline.allocation.database.limits import database_now
from optuna_deadline.allocation.database.schema import report, worker
from optuna_deadline.errors import DeadlineError
from optuna_deadline.worker.database_errors import (
    DATABASE_ERRORS,
    advice_for,
    describe_database_error,
    driver_error,
    error_code,
    is_refusal,
)

_EXISTS = ("42P07", "42710")  # a table, another object
_URLS = "sqlite:///study.db or postgresql://user@host/database"
_MAKE = "check --storage, or make a study there with 'optuna-deadline create'"
_TRIES, _PAUSE = 5, 0.2  # seconds


#: The environment variable with the URL of the database.
STORAGE_VARIABLE = "OPTUNA_DEADLINE_STORAGE"


class GivenStorage(str):
    """The URL of a database that was read from a file.

    Attributes:
        file: The file.
    """

    file: Path

    @classmethod
    def read(cls, file: Path) -> GivenStorage:
        """Read the URL in a file.

        Raises:
            DeadlineError: The file cannot be read, or has not one line.
        """
        try:
            lines = file.read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            raise DeadlineError(f"The storage file {file} cannot be read: {error}.") from None
        if len(lines) != 1:
            raise DeadlineError(f"The storage file {file} must have one line, a database's URL.")
        found = cls(lines[0])
        found.file = file.absolute()
        return found


def storage_options(storage: str) -> list[str]:
    """The options by which another process gets the same database, without a password.

    Raises:
        DeadlineError: The URL contains a password.
    """
    if isinstance(storage, GivenStorage):
        return ["--storage-file", str(storage.file)]
    if os.environ.get(STORAGE_VARIABLE) == storage:
        return []  # the process has the same environment
    if without_password(storage) != storage:
        raise DeadlineError(
            "A job's script and the list of its processes would show the password of --storage: "
            "put the URL into a file with mode 600 that all nodes can read, and name it with "
            f"--storage-file, or use {STORAGE_VARIABLE} or PGPASSFILE."
        )
    return ["--storage", storage]


class NoStudyTables(DeadlineError):
    """The database has never held a study."""


def check_url(text: str) -> URL:
    """Check that a URL names a database that several commands can share.

    Raises:
        DeadlineError: The URL is invalid; the message shows a valid one.
    """
    try:
        url = make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise DeadlineError(
            f"{without_password(text)!r} is not a database URL: write {_URLS}."
        ) from None
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise DeadlineError(f"A study needs SQLite or PostgreSQL, not {backend!r}: write {_URLS}.")
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise DeadlineError(
            f"{text} is a database in memory, which is lost when this command ends: name a "
            "file, as in "
            "sqlite:///study.db."
        )
    try:
        url.get_dialect().import_dbapi()
    except (ImportError, sa.exc.ArgumentError):
        raise DeadlineError(
            f"No driver for {url.drivername}:// is installed: write {_URLS}, and for PostgreSQL "
            "pip install 'optuna-deadline[postgres]'."
        ) from None
    return url


def make_storage(text: str) -> BaseStorage:
    """Open Optuna's storage at a URL; create its tables if they are missing.

    Optuna looks for its tables and then creates them. If several processes do so at once in an
    empty database, all but one fail. They find the tables at the next try.

    Raises:
        DeadlineError: The URL is invalid, or the tables cannot be created.
    """
    url = check_url(text)
    if (file := _file(url)) is not None and not file.parent.is_dir():
        raise DeadlineError(f"There is no folder {file.parent} for the database; create it first.")
    if file is not None and not file.exists():
        with suppress(OSError):  # SQLite's own error says more
            file.touch(mode=0o600)  # its other files get the mode of this one
    for last in [False] * (_TRIES - 1) + [True]:
        try:
            return _open(text)
        except sa.exc.DatabaseError as error:
            if last or not _is_there_already(error):
                raise
            time.sleep(_PAUSE)
    raise AssertionError("the last try returns or raises")


def _is_there_already(error: sa.exc.DatabaseError) -> bool:
    """Whether another process created the table, or its first row, at the same time."""
    there = isinstance(error, sa.exc.IntegrityError) or error_code(error) in _EXISTS
    return there or (isinstance(error.orig, sqlite3.Error) and "already exists" in str(error))


def open_storage(text: str) -> BaseStorage:
    """Open Optuna's storage at a URL that has studies; raises as :func:`check_made`."""
    check_made(text)
    return _open(text)


def serving_storage(text: str) -> BaseStorage:
    """Open Optuna's storage for a server, which may start before the first study exists.

    That holds on PostgreSQL, where the database itself was created on purpose.

    Raises:
        DeadlineError: The URL is invalid, or names a file without studies.
    """
    sqlite = check_url(text).get_backend_name() == "sqlite"
    return open_storage(text) if sqlite else make_storage(text)


def check_made(text: str) -> URL:
    """Check that the database at a URL has studies, without creating anything.

    Raises:
        DeadlineError: The URL is invalid, its file is missing, or it has never held a study.
    """
    url = check_url(text)
    file = _file(url)
    if file is not None and not file.is_file():
        raise NoStudyTables(f"There is no database {file.resolve()}: {_MAKE}.")
    if not has_table(url, "studies"):
        shown = without_password(url.render_as_string(hide_password=False))
        raise NoStudyTables(f"The database {shown} has no study yet: {_MAKE}.")
    return url


def is_made(text: str) -> bool:
    """Whether the database at a URL has ever held a study."""
    try:
        check_made(text)
    except NoStudyTables:
        return False
    return True


def error_message(error: BaseException) -> str | None:
    """Explain a database error and what to do; None if the error is a defect of ours."""
    message, cause = describe_database_error(error), driver_error(error)
    if isinstance(cause, sqlite3.OperationalError) or "not a database" in message:
        return (
            f"The database cannot be used ({message}): check --storage, and that its file and "
            "folder can be written."
        )
    if is_refusal(error):
        return (
            f"The database refuses ({message}): let --storage name an account that may make "
            "tables and write."
        )
    if (advice := advice_for(error)) is not None:
        return f"The database does not serve this command ({message}): {advice}."
    if isinstance(error, DATABASE_ERRORS):
        return f"The database does not answer ({message}): start it, or check --storage."
    return None


def _open(text: str) -> BaseStorage:
    try:
        return storage_at(text)
    except RuntimeError as error:
        if "table schema" not in str(error):  # created by another version of Optuna
            raise
        raise DeadlineError(str(error)) from None


def _file(url: URL) -> Path | None:
    """The file of a SQLite database; None if it is an SQLite URI."""
    if url.get_backend_name() != "sqlite" or str(url.database).startswith("file:"):
        return None
    return Path(str(url.database))


def without_password(text: str) -> str:
    """Hide the passwords of a URL, also if the URL cannot be parsed."""
    text = re.sub(r"(?i)(password=)[^&\s]*", r"\1***", text)
    scheme, _, rest = text.rpartition("://") if "://" in text else ("", "", text)
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if not (at and colon):
        return text
    return f"{scheme + '://' if scheme else ''}{user}:***@{place}"


def load_study(name: str, url: str) -> Study:
    """Load a study.

    Raises:
        DeadlineError: There is no study of that name.
    """
    storage = open_storage(url)
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        names = ", ".join(optuna.get_all_study_names(storage)) or "none yet"
        raise DeadlineError(
            f"There is no study {name!r} (there are: {printable(names)}); make it with "
            f"'optuna-deadline create {shlex.quote(name)}'."
        ) from None


#: Round trips to write one trial: its reports, Optuna's copy of them, a checkpoint, its progress.
TURN = 14

_RECENT = 60.0  # seconds
_MOST = 2000  # reports that are read
_LATE = 3.0  # reports that a trial may make before a plan sees one


@dataclass(frozen=True)
class Traffic:
    """The traffic between one worker and its database."""

    trip: float  #: seconds of a round trip
    reports: float  #: a second
    trials: float  #: that report

    @property
    def late(self) -> float:
        """Seconds until a message of a trial is written, at most: after those of all others."""
        return TURN * self.trip * self.trials

    @property
    def warning(self) -> str | None:
        """Advice if a trial makes several reports before a plan sees one; None otherwise."""
        if TURN * self.trip * self.reports <= _LATE:
            return None
        return (
            f"a round trip to the database takes {self.trip * 1000:.0f} ms and each worker's "
            f"trials report {self.reports:.0f} times a second: plans see them {self.late:.1f} s "
            "late; report and save less often, or bring the database nearer"
        )


def round_trip(connection: sa.Connection) -> float:
    """Seconds of a round trip: the median of five."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        connection.execute(sa.select(1))
        times.append(time.monotonic() - began)
    return sorted(times)[2]


def measure(connection: sa.Connection, study_id: int | None = None) -> Traffic:
    """The recent traffic of each live worker of a study, or of the whole database."""
    trip = round_trip(connection)
    now = float(connection.execute(sa.select(database_now())).scalar_one())
    newest = sa.select(report.c.study_id, report.c.number, report.c.at)
    live = sa.select(sa.func.count()).where(worker.c.state == "live", worker.c.lease > now)
    if study_id is not None:
        newest = newest.where(report.c.study_id == study_id)
        live = live.where(worker.c.study_id == study_id)
    rows = connection.execute(newest.order_by(report.c.id.desc()).limit(_MOST)).all()
    recent = [row for row in rows if row.at > now - _RECENT]
    workers = max(1, connection.execute(live).scalar_one())
    seconds = max(1.0, min(_RECENT, now - min([row.at for row in recent], default=now)))
    trials = len({(row.study_id, row.number) for row in recent})
    return Traffic(trip, len(recent) / seconds / workers, trials / workers)
