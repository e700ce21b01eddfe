"""pgbouncer in transaction mode before a server: each transaction may get another session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from sqlalchemy.engine import make_url

from benchmarks.support.postgres import PostgresServer


class Bouncer:
    """A pooler of our own for the length of a ``with`` block.

    Fewer server sessions than clients, so that sessions are shared for certain.
    """

    def __init__(self, server: PostgresServer, sessions: int = 3) -> None:
        self._server, self._sessions = server, sessions

    @staticmethod
    def binary() -> str | None:
        """Where pgbouncer is, if it is installed."""
        return shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")

    def url(self, database: str, driver: str = "psycopg2") -> str:
        """The URL of a database through the pooler."""
        behind = make_url(self._server.url(driver, database))
        return behind.set(host="127.0.0.1", port=self._port).render_as_string(False)

    def __enter__(self) -> Bouncer:
        behind = make_url(self._server.url())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder = Path(tempfile.mkdtemp(prefix="bouncer-"))
        self._folder.chmod(0o755)
        settings = self._folder / "pgbouncer.ini"
        password = f" password={behind.password}" if behind.password else ""
        settings.write_text(
            f"[databases]\n* = host={behind.host} port={behind.port} user={behind.username}"
            f"{password}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\n"
            "unix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
            f"default_pool_size = {self._sessions}\nserver_reset_query_always = 0\n"
        )
        self._pooler = subprocess.Popen(
            [str(self.binary()), str(settings)],
            user="nobody" if os.geteuid() == 0 else None,  # it refuses to run as root
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return self
            except OSError:
                time.sleep(0.05)
        self.__exit__()
        raise RuntimeError("pgbouncer did not start")

    def __exit__(self, *_: object) -> None:
        self._pooler.kill()
        self._pooler.wait()
        shutil.rmtree(self._folder)
