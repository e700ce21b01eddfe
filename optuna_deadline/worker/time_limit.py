"""A worker's own end: a job's time limit, a host that is wanted back.

The study's deadline is another matter. A worker that has an end of its own leaves before it, as if
it were asked to, and its trials go on elsewhere or later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from optuna_deadline.errors import DeadlineError, spelled
from optuna_deadline.forecasting.overheads import Overhead, leaving_seconds
from optuna_deadline.values.deadlines import DeadlineLike, format_duration, parse_deadline
from optuna_deadline.worker.segment import Gang

#: Why a worker leaves that has come to its own end.
TIME_IS_OVER = "the worker's own time is over"

_LAST_WORDS = 5.0  # seconds for what is done after a study's deadline


class Until:
    """Until when a worker may work.

    Args:
        at: On the monotonic clock; infinity for a worker that has no end of its own.
        overhead: What starting and leaving have cost in the study so far.
    """

    def __init__(self, at: float = math.inf, overhead: Overhead | None = None) -> None:
        self.at = at
        self._overhead = overhead or Overhead()
        self._silence = 0.0

    def check(self) -> None:
        """Whether there is time for anything.

        Raises:
            DeadlineError: There is not.
        """
        left, needed = self.at - time.monotonic(), leaving_seconds(self._overhead.stop)
        if left <= needed:
            said = f"in {format_duration(left)}" if left > 0 else "over"
            raise DeadlineError(
                f"This worker's time is {said}, and saving its trials and leaving may take "
                f"{format_duration(needed)}: give it longer "
                f"({spelled('until=', '--until')}, or the job's time limit)."
            )

    def bring_forward(self, at: float) -> None:
        """The end comes earlier; one that was to come earlier still stays."""
        self.at = min(self.at, at)

    def hear(self, gangs: Iterable[Gang]) -> None:
        """Learn how long trials are not heard of: their start, and their longest steps."""
        if self.at < math.inf:
            self._silence = max([self._silence, *(gang.longest for gang in gangs)])

    def is_over(self, stop: float, deadline: float = math.inf) -> bool:
        """Whether to save and leave now; a study that ends before is ended here.

        Args:
            stop: Seconds that the slowest trial took to leave here.
            deadline: Of the study, on the monotonic clock.
        """
        return self._left(stop) <= 0 and deadline + _LAST_WORDS > self.at

    def is_closing(self, stop: float) -> bool:
        """Whether nothing new is started any more: it would have to leave before it trained."""
        return self._left(stop) <= max(self._overhead.startup, self._silence)

    def _left(self, stop: float) -> float:
        slowest = max(stop, self._overhead.stop)
        return self.at - time.monotonic() - leaving_seconds(slowest, self._silence)


def moment(until: DeadlineLike) -> float:
    """A worker's end on the monotonic clock; an instant is by this machine's own clock."""
    now = time.time()
    return time.monotonic() + parse_deadline(until).instant(now) - now
