"""Time that a test moves."""

from __future__ import annotations

import time
from datetime import datetime


class FakeClock:
    """Real time, and what the test adds to it; Optuna's datetimes are real."""

    def __init__(self) -> None:
        self._shifts = [(0.0, 0.0)]

    def advance(self, seconds: float) -> None:
        self._shifts.append((time.time(), self._shifts[-1][1] + seconds))

    def now(self) -> float:
        return time.monotonic() + self._shifts[-1][1]

    def since(self, moment: datetime) -> float:
        at = moment.timestamp()
        before = max(shift for since, shift in self._shifts if since <= at)
        return max(0.0, time.time() - at + self._shifts[-1][1] - before)
