"""Whether the database's clock runs evenly, and by how much it was set."""

from __future__ import annotations

import math
import threading
import time

from optuna_deadline.allocation.rules import CLOCK_TOLERANCE

_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: A deadline is moved with a clock that was set by more seconds than this.
_WORTH_MOVING = 2.0


def uptime() -> float:
    """Seconds of a clock that cannot be set, and that runs while the machine is suspended."""
    return time.clock_gettime(_UPTIME)


class ClockMonitor:
    """Checks that the database's clock runs evenly, by a clock that cannot be set.

    A clock that is set forward makes every lease look expired while its holder still trains. So a
    reaper first watches the clock for the time of a lease and its grace: what looks expired after
    that has not been renewed for so long, whatever the clock did before. A process that was frozen
    has not watched: the clock may have been set back and forward again, and leases renewed in
    between look expired until the next renewal.

    Attributes:
        stepped: By how many seconds the database's clock was set forward in all, as far as this
            process has seen it; negative for back.
    """

    def __init__(self) -> None:
        self.stepped = 0.0
        self._offset: float | None = None  # the database's time minus this process's
        self._since = math.inf
        self._doubt = math.inf
        self._read = -math.inf
        self._lock = threading.Lock()
        self._unread = 0.0  # the longest time between two readings since then

    def record_reading(self, now: float, sent: float, received: float) -> None:
        """Record a reading that was made between two instants by :func:`uptime`."""
        with self._lock:
            if received >= self._read:  # else another thread has recorded a later one
                self._record(now, sent, received)

    def _record(self, now: float, sent: float, received: float) -> None:
        self._doubt = received - sent
        middle = now - (sent + received) / 2
        if self._offset is not None:
            self._unread = max(self._unread, received - self._read)
        self._read = received
        if self._offset is None or abs(middle - self._offset) > self._doubt / 2 + CLOCK_TOLERANCE:
            if self._offset is not None:
                self.stepped += middle - self._offset
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
            self._since, self._unread = uptime(), 0.0
        return self._doubt <= doubt and uptime() - self._since >= seconds


class SteadyDeadline:
    """Keeps a deadline as far away as it was when the database's clock is set.

    Args:
        clock: Watches the clock.
    """

    def __init__(self, clock: ClockMonitor) -> None:
        self._clock = clock
        self._stored: float | None = None
        self._stepped = 0.0  # when this process first read that deadline

    def step(self, stored: float) -> float:
        """By how many seconds to move a deadline by the database's clock, as it is stored."""
        if stored != self._stored:  # another process has moved it
            self._stored, self._stepped = stored, self._clock.stepped
        step = self._clock.stepped - self._stepped
        return step if abs(step) > _WORTH_MOVING else 0.0
