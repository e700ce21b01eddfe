"""What a policy sees: the study at one instant, as immutable values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from optuna_deadline.forecasting.overheads import Overhead
from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.policies.money import Money

WORST = -math.inf


class Report(NamedTuple):
    """One report: how good after how much training."""

    step: int
    score: float  #: larger is better whatever the direction; NaN became ``-inf``
    trained: float  #: seconds of training over all segments so far


@dataclass(frozen=True)
class TrialView:
    """One trial, as far as a policy may know it."""

    number: int
    state: str  #: ready, running, paused, retired, failed, complete
    slots: int = 0  #: what the last plan gave it; 0 while paused
    reports: tuple[Report, ...] = ()
    changed: float = 0.0  #: when the plan for it last changed
    horizon: int | None = None  #: the step at which the objective would stop by itself
    step_seconds: float | None = None  #: seconds a step takes on one slot
    batch: int | None = None  #: what the size of its gang is to divide; None for any size
    slot_limit: int | None = None  #: the most slots that it can train on, kept for every policy

    @property
    def alive(self) -> bool:
        """Whether it can still be trained."""
        return self.state in ("ready", "running", "paused")

    @property
    def running(self) -> bool:
        """Whether the last plan gives it slots."""
        return self.alive and self.slots > 0

    @property
    def step(self) -> int:
        """The last reported step, 0 before the first report."""
        return self.reports[-1].step if self.reports else 0

    @property
    def trained(self) -> float:
        """Seconds of training until the last report."""
        return self.reports[-1].trained if self.reports else 0.0

    @property
    def last_score(self) -> float:
        """The last report; a trial without one ranks worst, never best."""
        return self.reports[-1].score if self.reports else WORST

    @property
    def best_score(self) -> float:
        """The best report."""
        return max((report.score for report in self.reports), default=WORST)


class Request(NamedTuple):
    """What a person asks for one trial; :class:`~optuna_deadline.policies.wrappers.Obliging`."""

    number: int
    held: bool = False  #: it is to have no slots
    pinned: int | None = None  #: it is to have so many
    why: str = ""  #: where it is not a person who asks


@dataclass(frozen=True)
class Snapshot:
    """The study at one instant. Times are the database's seconds."""

    now: float
    started: float
    deadline: float
    capacity: int  #: slots of the pool that live workers offer
    largest_gang: int  #: slots of the largest worker, or of several between which gangs may cross
    trials: tuple[TrialView, ...] = ()
    speedup: Speedup = field(default_factory=Speedup)
    overhead: Overhead = field(default_factory=Overhead)
    money: Money | None = None  #: None where slots cost nothing; then the capacity is given
    requests: tuple[Request, ...] = ()  #: obeyed for every policy, which sees none
    exhausted: bool = False  #: nothing is left to search: no new trial is opened
    max_slots: int | None = None  #: the most that any trial may have; policies see it as the gang

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - self.now)
