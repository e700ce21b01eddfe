"""Time that a test moves."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone

from optuna_deadline.pruners._clock import ProcessClock

_moving = threading.Lock()  # one for all: a clock is pickled with its pruner


_MOMENT = 0.001  # seconds: where time is just enough, real time never is


class FakeClock(ProcessClock):
    """Time that passes only when a test moves it; Optuna's datetimes are real.

    Threads may move it at once: each finds the time that the others have added.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shifts = [(0.0, 0.0)]  # since which real instant how much has passed

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and the moment that everything else takes."""
        with _moving:
            self._shifts.append((time.time(), self._shifts[-1][1] + seconds + _MOMENT))

    def now(self) -> float:
        return self._began + self._shifts[-1][1]

    def since(self, moment: datetime) -> float:
        at = moment.timestamp()
        with _moving:
            before = max(passed for since, passed in self._shifts if since <= at)
            return self._shifts[-1][1] - before


def ahead(seconds: float) -> datetime:
    """The instant in so many seconds, by the machine's clock."""
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)
