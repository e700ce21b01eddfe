"""Time: SQL's is the database's, a process's is monotonic, and people's is the wall clock."""

from __future__ import annotations

import math
import time

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class database_now(FunctionElement[float]):
    """Seconds since the epoch by the database's clock, read anew in each statement."""

    type = sa.Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _sqlite_now(element: database_now, compiler: SQLCompiler, **kwargs: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgres_now(element: database_now, compiler: SQLCompiler, **kwargs: object) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


#: Seconds that two readings may differ by beyond what their round trips explain.
TOLERANCE = 0.25


class EvenClock:
    """Whether the database's clock has run evenly of late, by the process's monotonic clock.

    A clock that is set forward makes every lease look expired while its holder still trains. So
    who reaps first watches the clock for as long as a lease and its grace last: what looks expired
    after that has not been renewed for so long, however the clock stood before.
    """

    def __init__(self) -> None:
        self._offset: float | None = None  # the database's time less ours
        self._since = math.inf
        self._doubt = math.inf

    def note(self, now: float, sent: float, received: float) -> None:
        """Take a reading that was made between two instants of ours."""
        self._doubt = received - sent
        middle = now - (sent + received) / 2
        if self._offset is None or abs(middle - self._offset) > self._doubt / 2 + TOLERANCE:
            self._since = received
            self._offset = middle
        elif self._doubt < TOLERANCE:
            self._offset = middle  # follows a slow drift

    def vouches(self, seconds: float, doubt: float) -> bool:
        """Whether it ran evenly for so long, and the last reading leaves no larger doubt."""
        return self._doubt <= doubt and time.monotonic() - self._since >= seconds
