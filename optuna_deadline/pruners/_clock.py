"""The clocks of a process; tests inject their own."""

from __future__ import annotations

import time
from datetime import datetime

from optuna_deadline.allocation.database.clock import uptime


class ProcessClock:
    """The clocks of the process: one for intervals, the wall's for Optuna's datetimes."""

    def now(self) -> float:
        """Seconds of a clock that cannot be set."""
        return uptime()

    def since(self, moment: datetime) -> float:
        """Seconds since a naive local time, as Optuna stores it; never negative."""
        return max(0.0, time.time() - moment.timestamp())
