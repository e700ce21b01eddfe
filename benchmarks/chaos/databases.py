"""The databases of the chaos run, and their faults.

The package is not changed to step the clock. On PostgreSQL, a schema that is searched before
``pg_catalog`` has its own ``clock_timestamp()``. On SQLite, every process reads the step from a
file (:func:`benchmarks.chaos.worker.step_sqlite`).
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from benchmarks.chaos.disk import Disk
from benchmarks.support.network import Proxy
from benchmarks.support.postgres import EmbeddedPostgres

_DATABASE = "chaos"
_STEPPED_CLOCK = f"""
CREATE SCHEMA chaos;
CREATE TABLE chaos.step (seconds double precision NOT NULL);
INSERT INTO chaos.step VALUES (0);
CREATE FUNCTION chaos.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + seconds * interval ''1 second'' FROM chaos.step';
ALTER DATABASE {_DATABASE} SET search_path = chaos, pg_catalog;
"""


class Database(Protocol):
    """The interface of both databases."""

    url: str  #: the URL without a proxy, for the run itself
    proxies: list[Proxy]

    def url_for(self, member: int) -> str:
        """The URL for one worker."""

    def step_clock(self, seconds: float) -> None:
        """Step the database's clock by a number of seconds."""

    def close(self) -> None:
        """Stop the database."""


class Sqlite:
    """A SQLite file.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{Disk(folder).folder / 'chaos.db'}"
        self.proxies: list[Proxy] = []
        self._clock = folder / "clock"
        self.step_clock(0.0)

    def url_for(self, member: int) -> str:
        """The URL of the file, for every worker."""
        return self.url

    def step_clock(self, seconds: float) -> None:
        """Replace the file with the step."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._clock)

    def close(self) -> None:
        """Do nothing: there is no server."""


class Postgres:
    """A temporary server, with a proxy for each worker.

    Args:
        folder: The folder of the run.
        members: The number of workers.
    """

    def __init__(self, folder: Path, members: int) -> None:
        self._stack = ExitStack()
        # Commits must survive a crash of the server, not of the machine.
        disk = Disk(folder)
        settings = ("fsync=off", "max_wal_size=64MB")
        parent = disk.folder if disk.own else None
        server = EmbeddedPostgres(durable=True, settings=settings, parent=parent)
        self.server = self._stack.enter_context(server)
        self.url = self.server.create_database(_DATABASE)
        with self._connect() as connection:
            connection.exec_driver_sql(_STEPPED_CLOCK)
        port = sa.make_url(self.url).port
        assert port is not None
        self.proxies = [self._stack.enter_context(Proxy(port)) for _ in range(members)]

    def url_for(self, member: int) -> str:
        """The URL through the worker's proxy."""
        url = sa.make_url(self.url).set(port=self.proxies[member].port)
        return url.render_as_string(hide_password=False)

    def step_clock(self, seconds: float) -> None:
        """Step the clock for every session from its next statement on."""
        with self._connect() as connection:
            connection.execute(sa.text("UPDATE chaos.step SET seconds = :s"), {"s": seconds})

    def terminate(self, share: float) -> int:
        """Call ``pg_terminate_backend`` on a share of the sessions; return their number."""
        kill = sa.text(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < :share"
        )
        with self._connect() as connection:
            return int(connection.execute(kill, {"share": share}).scalar_one())

    def take_writes(self, allowed: bool) -> None:
        """Let the server take writes, or reads only, from each session's next transaction on."""
        with self._connect() as connection:
            connection.exec_driver_sql("SET default_transaction_read_only = off")
            value = "off" if allowed else "on"
            connection.exec_driver_sql(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            connection.exec_driver_sql("SELECT pg_reload_conf()")

    def lock(self, table: str) -> sa.Connection:
        """Lock a table until the connection is closed."""
        connection = self._connect()
        try:
            connection.exec_driver_sql("SET lock_timeout = '1s'")
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Stop the server and the proxies."""
        with suppress(OSError):
            self._stack.close()

    def _connect(self) -> sa.Connection:
        engine = sa.create_engine(
            self.url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT"
        )
        return engine.connect()
