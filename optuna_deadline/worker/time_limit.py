"""A worker's own time limit, such as a job's.

It is independent of the study's deadline. A worker with a time limit leaves before it, as if it
were asked to, and its trials resume elsewhere or later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from optuna_deadline.errors import DeadlineError, spelled
from optuna_deadline.forecasting.throughput import Overhead, leaving_seconds
from optuna_deadline.values.deadlines import DeadlineLike, format_duration, parse_deadline
from optuna_deadline.worker.segment import Gang

#: The reason of a worker that reaches its time limit.
TIME_LIMIT_REACHED = "the worker's own time is over"
_SETTLE_SECONDS = 5.0  # seconds for the work after a study's deadline


class WorkerTimeLimit:
    """The time until which a worker may work.

    Args:
        ends_at: On the monotonic clock; infinity without a time limit.
        overhead: The measured cost of starting and leaving in this study.
    """

    def __init__(self, at: float = math.inf, overhead: Overhead | None = None) -> None:
        self.ends_at = at
        self._overhead = overhead or Overhead()
        self._longest_silence = 0.0

    def check(self) -> None:
        """Check that there is time for a trial.

        Raises:
            DeadlineError: There is not.
        """
        left, needed = self.ends_at - time.monotonic(), leaving_seconds(self._overhead.stop)
        if left <= needed:
            when = f"in {format_duration(left)}" if left > 0 else "over"
            raise DeadlineError(
                f"This worker's time limit is {when}, and saving its trials and leaving may take "
                f"{format_duration(needed)}: give it more time "
                f"({spelled('max_time', '--max-time')}, or the job's time limit)."
            )

    def bring_forward(self, at: float) -> None:
        """Move the time limit forward; an earlier one stays."""
        self.ends_at = min(self.ends_at, at)

    def observe_silence(self, gangs: Iterable[Gang]) -> None:
        """Record how long trials send no message: their start, and their longest steps."""
        if self.ends_at < math.inf:
            self._longest_silence = max(
                [self._longest_silence, *(gang.longest_silence for gang in gangs)]
            )

    def must_leave(self, stop: float, deadline: float = math.inf) -> bool:
        """Whether to save and leave now; False if the study ends earlier.

        Args:
            stop: Seconds that the slowest trial took to leave here.
            deadline: Of the study, on the monotonic clock.
        """
        return self._seconds_left(stop) <= 0 and deadline + _SETTLE_SECONDS > self.ends_at

    def accepts_no_segments(self, stop: float) -> bool:
        """Whether no new segment may start, because it would have to leave before it trains."""
        return self._seconds_left(stop) <= max(self._overhead.startup, self._longest_silence)

    def _seconds_left(self, stop: float) -> float:
        slowest = max(stop, self._overhead.stop)
        return self.ends_at - time.monotonic() - leaving_seconds(slowest, self._longest_silence)


def monotonic_end(until: DeadlineLike) -> float:
    """A time limit on the monotonic clock; an instant is read on this host's clock."""
    now = time.time()
    return time.monotonic() + parse_deadline(until).instant(now) - now
