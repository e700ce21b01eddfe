"""A trial's pace: when its next report will come, judged by its own reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from statistics import median, median_low

_KEPT = 5
_SAFETY = 1.1
#: Of what a single measurement took, the part that is taken for pace until there is a second one:
#: the first trial of a process reads data and fills caches, the first step of any compiles.
UNPROVEN = 0.5


@dataclass(frozen=True)
class Pace:
    """When a trial reported; instants and intervals are seconds of one monotonic clock.

    Attributes:
        started: When the trial started.
        first_step: The step of the first report seen, None before it.
        first_at: When that came.
        stride: Steps from the first report to the second, None before that.
        last_step: The step of the newest report.
        last_at: When that came.
        recent: The newest intervals between reports, at most five.
    """

    started: float
    first_step: int | None = None
    first_at: float = 0.0
    stride: int | None = None
    last_step: int = -1
    last_at: float = 0.0
    recent: tuple[float, ...] = ()

    def reported(self, step: int, at: float) -> Pace:
        """The pace after a report; one that was seen already changes nothing."""
        if self.first_step is None:
            return replace(self, first_step=step, first_at=at, last_step=step, last_at=at)
        if step <= self.last_step:
            return self
        stride = step - self.first_step if self.stride is None else self.stride
        recent = (*self.recent, max(0.0, at - self.last_at))[-_KEPT:]
        return replace(self, stride=stride, last_step=step, last_at=at, recent=recent)

    @property
    def first_seconds(self) -> float:
        """Seconds from the start to the first report, the start-up included."""
        return max(0.0, self.first_at - self.started)

    def next_report(self, others: Sequence[Pace] = ()) -> float:
        """Seconds from one report to the next, our own rule.

        The longest of the recent intervals and a tenth. One report is no pace: what it took is
        start-up and steps in one. So the start-up of other trials is taken off; where none is
        known yet, half of the time is taken for start-up.

        Args:
            others: Other trials of this process, in the order in which they began.
        """
        if self.recent:
            return _SAFETY * max(self.recent)
        startup = known_startup(others)
        if startup is None:
            return UNPROVEN * self.first_seconds
        interval = median([max(other.recent) for other in others if other.recent])
        return _SAFETY * max(self.first_seconds - startup, interval)

    @property
    def steps(self) -> int:
        """Steps trained up to the first report."""
        if self.first_step is None:
            return 1
        return self.first_step - step_before(
            [self.first_step, self.first_step + (self.stride or 1)]
        )

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


def known_startup(paces: Sequence[Pace]) -> float | None:
    """Seconds that a trial of this process takes before its first step.

    What the first trial took is left out: it has done for all of them what is done once.

    Args:
        paces: Trials of this process, in the order in which they began.

    Returns:
        None where no trial but the first has reported twice.
    """
    known = [pace.startup for pace in paces[1:] if pace.recent]
    return median_low(known) if known else None


def step_before(steps: Iterable[int]) -> int:
    """The step before the first that was trained, by the steps of a trial's reports.

    A trial whose steps begin at 1,000 has trained one by then, and one that reports each tenth
    step has trained ten by its first report. Where steps count from 0, this is -1.
    """
    first, *more = nsmallest(2, steps)
    stride = more[0] - first if more else 1
    return max(first - stride, min(first, 1) - 1)


def step_before_all(trials: Iterable[Collection[int]]) -> int:
    """The same for a whole study, by the steps of each trial's reports; 0 without any report."""
    return min((step_before(steps) for steps in trials if steps), default=0)
