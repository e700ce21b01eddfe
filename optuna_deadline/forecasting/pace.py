"""A trial's pace: when its next report will come, judged by its own reports."""

from __future__ import annotations

from dataclasses import dataclass, replace

_KEPT = 5
_SAFETY = 1.1


@dataclass(frozen=True)
class Pace:
    """When a trial reported; instants and intervals are seconds of one monotonic clock.

    Attributes:
        started: When the trial started.
        first_step: The step of the first report seen, None before it.
        first_at: When that came.
        last_step: The step of the newest report.
        last_at: When that came.
        recent: The newest intervals between reports, at most five.
    """

    started: float
    first_step: int | None = None
    first_at: float = 0.0
    last_step: int = -1
    last_at: float = 0.0
    recent: tuple[float, ...] = ()

    def reported(self, step: int, at: float) -> Pace:
        """The pace after a report; one that was seen already changes nothing."""
        if self.first_step is None:
            return replace(self, first_step=step, first_at=at, last_step=step, last_at=at)
        if step <= self.last_step:
            return self
        recent = (*self.recent, max(0.0, at - self.last_at))[-_KEPT:]
        return replace(self, last_step=step, last_at=at, recent=recent)

    @property
    def first_seconds(self) -> float:
        """Seconds from the start to the first report, the start-up included."""
        return max(0.0, self.first_at - self.started)

    def next_report(self) -> float:
        """Seconds from one report to the next: an upper estimate, our own rule.

        The longest of the recent intervals and a tenth; after a single report the time that took,
        which the start-up makes too long rather than too short.
        """
        return _SAFETY * (max(self.recent) if self.recent else self.first_seconds)

    @property
    def steps(self) -> int:
        """Steps trained up to the first report; a report of step 0 means one."""
        return max(1, self.first_step or 0)

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds per step, None before the first report."""
        if self.first_step is None:
            return None
        if self.last_step > self.first_step:
            return (self.last_at - self.first_at) / (self.last_step - self.first_step)
        return self.first_seconds / self.steps

    @property
    def startup(self) -> float:
        """Seconds before the first step began, 0 as long as that cannot be told."""
        per_step = self.seconds_per_step
        if per_step is None:
            return 0.0
        return max(0.0, self.first_seconds - per_step * self.steps)
