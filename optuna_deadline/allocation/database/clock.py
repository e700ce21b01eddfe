"""Whether the database's clock runs evenly."""

from __future__ import annotations

import math
import time

from optuna_deadline.allocation.rules import CLOCK_TOLERANCE


class ClockMonitor:
    """Checks that the database's clock runs evenly, by the process's monotonic clock.

    A clock that is set forward makes every lease look expired while its holder still trains. So a
    reaper first watches the clock for the time of a lease and its grace: what looks expired after
    that has not been renewed for so long, whatever the clock did before. A process that was frozen
    has not watched: the clock may have been set back and forward again, and leases renewed in
    between look expired until the next renewal.
    """

    def __init__(self) -> None:
        self._offset: float | None = None  # the database's time minus this process's
        self._since = math.inf
        self._doubt = math.inf
        self._read = math.inf
        self._unread = 0.0  # the longest time between two readings since then

    def record_reading(self, now: float, sent: float, received: float) -> None:
        """Record a reading that was made between two instants of this process."""
        self._doubt = received - sent
        middle = now - (sent + received) / 2
        self._unread = max(self._unread, received - self._read)
        self._read = received
        if self._offset is None or abs(middle - self._offset) > self._doubt / 2 + CLOCK_TOLERANCE:
            self._since = received
            self._offset = middle
            self._unread = 0.0
        elif self._doubt < CLOCK_TOLERANCE:
            self._offset = middle  # follows a slow drift

    def is_reliable(self, seconds: float, doubt: float, unread: float = math.inf) -> bool:
        """Whether the clock has run evenly for some time and the last reading is exact enough.

        Args:
            seconds: For how long.
            doubt: Seconds that the last reading may have taken.
            unread: Seconds between two readings after which the watch starts again.
        """
        if self._unread > unread:
            self._since, self._unread = time.monotonic(), 0.0
        return self._doubt <= doubt and time.monotonic() - self._since >= seconds
