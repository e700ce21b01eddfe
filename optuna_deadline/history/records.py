"""A study's history as frozen values: what figures, notes and the live page are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from optuna_deadline.allocation.records import (
    Desired,
    Event,
    ReportRow,
    SegmentRow,
    Slot,
    Worker,
)
from optuna_deadline.history.curves import Best, best_so_far, curves_of
from optuna_deadline.history.lives import Hold, Life
from optuna_deadline.history.spells import tell_holds, tell_lives
from optuna_deadline.values.budgets import Budget


@dataclass(frozen=True)
class History:
    """A study at one moment, with all that led there. Instants are the database's seconds."""

    name: str
    study_id: int
    maximize: bool
    started: float
    deadline: float
    now: float
    settled: float | None = None  #: when it was closed
    trials: tuple[Desired, ...] = ()
    segments: tuple[SegmentRow, ...] = ()
    reports: tuple[ReportRow, ...] = ()
    events: tuple[Event, ...] = ()  #: the study's own, oldest first
    pool_events: tuple[Event, ...] = ()  #: who brought and left slots, and to whom they were lent
    slots: tuple[Slot, ...] = ()  #: of the pool
    workers: tuple[Worker, ...] = ()  #: of the pool, the live ones
    budget: Budget | None = None
    policy: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    plain: bool = False  #: trained by ``study.optimize`` alone, so that nothing is said of slots

    @property
    def end(self) -> float:
        """Until when there is something to tell: now, or when the study was closed."""
        return self.now if self.settled is None else min(self.now, self.settled)

    @property
    def time_left(self) -> float:
        """Seconds until the deadline; below zero once it is over."""
        return self.deadline - self.now

    @property
    def money_events(self) -> list[Event]:
        """What the bill is made of."""
        joined = [
            event
            for event in self.pool_events
            if event.kind == "register" and event.study_id == self.study_id
        ]
        return [*self.events, *joined]

    @cached_property
    def holds(self) -> list[Hold]:
        """Every slot's holders."""
        return tell_holds(self.events)

    @cached_property
    def lives(self) -> list[Life]:
        """Every trial's life, by number."""
        return tell_lives(self.events)

    @cached_property
    def curves(self) -> dict[int, list[ReportRow]]:
        """Each trial's finite reports by their steps; trials without any are left out."""
        return curves_of(self.reports)

    @cached_property
    def improvements(self) -> list[Best]:
        """Each report that was better than all before it."""
        return best_so_far(self.reports, self.maximize)
