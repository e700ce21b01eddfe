"""SQLite with a clock that a test can set, as the administrator of a server can."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa


class SetClock:
    """The clock of each database that is connected to while :func:`settable_clock` lasts."""

    ahead = 0.0  #: seconds

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._real = sqlite3.connect(":memory:", check_same_thread=False)

    def julianday(self, *_: Any) -> float:
        """What the function of SQLite returns now."""
        with self._lock:
            [days] = self._real.execute("SELECT julianday('now')").fetchone()
        return float(days) + self.ahead / 86400


@contextmanager
def settable_clock() -> Iterator[SetClock]:
    """Let all engines use a clock that the block can set."""
    clock = SetClock()

    def configure(connection: Any, _: Any) -> None:
        connection.create_function("julianday", -1, clock.julianday)

    sa.event.listen(sa.Engine, "connect", configure)
    try:
        yield clock
    finally:
        sa.event.remove(sa.Engine, "connect", configure)
