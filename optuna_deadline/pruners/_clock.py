"""The two clocks of a process, in one place so that tests can inject theirs."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """What a pruner asks of time."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""

    def since(self, moment: datetime) -> float:
        """Seconds since a naive local time, as Optuna writes them."""


class ProcessClock:
    """The clocks of the process: monotonic for intervals, the wall's for Optuna's datetimes."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return time.monotonic()

    def since(self, moment: datetime) -> float:
        """Seconds since a naive local time; never negative."""
        return max(0.0, time.time() - moment.timestamp())
