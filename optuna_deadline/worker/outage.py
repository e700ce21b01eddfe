"""A fault that is logged once, and once more when it is over."""

from __future__ import annotations

import math
import time

_SAME_CAUSE_SECONDS = 60.0  # between two log lines on it


class Outage:
    """Decides which lines on a fault are worth logging: of one that comes and goes, few are."""

    def __init__(self) -> None:
        self.since: float | None = (
            None  #: when it began, on the monotonic clock; None if it is over
        )
        self._logged = False
        self._last = ("", -math.inf)  # cause and time of the last line

    def begins(self, cause: str, ago: float = 0.0) -> bool:
        """Record a fault that began ``ago`` seconds before, unless it lasts.

        Returns:
            Whether to log it: not if the same one was logged just before.
        """
        if self.since is not None:
            return False
        now = time.monotonic()
        self.since = now - ago
        before, at = self._last
        self._logged = cause != before or now - at > _SAME_CAUSE_SECONDS
        if self._logged:
            self._last = cause, now
        return self._logged

    def ends(self) -> float | None:
        """Record that it is over; the seconds that it lasted, if that is to be logged."""
        since, self.since = self.since, None
        return max(0.0, time.monotonic() - since) if since is not None and self._logged else None

    def discount(self, seconds: float) -> None:
        """Count these seconds as none of it."""
        if self.since is not None:
            self.since += seconds
