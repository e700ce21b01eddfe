"""A running study at one moment, as people look at it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TypeGuard

from optuna_deadline.values.scores import score


@dataclass(frozen=True)
class TrialRow:
    """One trial in a view."""

    number: int
    state: str  #: ready, running, paused, complete, pruned, retired or failed
    slots: int = 0
    step: int | None = None  #: of the last report
    value: float | None = None  #: the last report
    best: float | None = None
    curve: tuple[float | None, ...] = ()  #: all reports, in the order of their steps
    reason: str = ""  #: the planner's reason for its state, and a regime that has changed
    held: bool = False  #: a user holds it
    pinned: int | None = None  #: the number of slots to which a user pins it
    hosts: tuple[str, ...] = ()  #: its host, in a study on several

    @property
    def words(self) -> str:
        """Its state, its host, and the user's request."""
        state = f"{self.state} on {'+'.join(self.hosts)}" if self.hosts else self.state
        if self.held:
            return f"{state}, held"
        return state if self.pinned is None else f"{state}, pinned {self.pinned}"


@dataclass(frozen=True)
class Decision:
    """A decision of the planner."""

    at: float  #: seconds since the study started
    words: str


@dataclass(frozen=True)
class View:
    """A study at one moment."""

    study: str
    time_left: float  #: seconds; below zero once the deadline is over
    deadline: datetime
    duration: float  #: seconds from start to deadline
    direction: str = "maximize"
    gate_open: bool = True
    ended: bool = False  #: before the deadline, or at it
    best_value: float | None = None
    best_trial: int | None = None
    best_step: int | None = None
    slots_used: int = 0
    slots_total: int = 0  #: lent to the study
    slots_of_pool: int = 0
    shares: tuple[tuple[str, int], ...] = ()  #: slots by study, if several share the pool
    rows: tuple[TrialRow, ...] = ()  #: all trials, by number
    decisions: tuple[Decision, ...] = ()  #: the newest, oldest first
    pauses: int = 0
    resumes: int = 0
    resizes: int = 0
    drained: tuple[str, ...] = ()  #: hosts of the pool that are drained
    alone: tuple[str, ...] = ()  #: hosts of the study whose checkpoints others do not reach
    limits: tuple[str, ...] = ()  #: limits of trials, and why
    slot_hours: float = 0.0  #: slot-hours held by trials
    spent: float | None = None  #: money; None if slots are free
    budget: str = ""  #: the budget, in words


#: States by relevance to the reader.
_ORDER = ("running", "ready", "paused", "complete", "failed", "pruned", "retired")


def by_relevance(view: View) -> list[TrialRow]:
    """The rows, running ones first, then by value."""

    def key(row: TrialRow) -> tuple[int, float, int]:
        state = _ORDER.index(row.state) if row.state in _ORDER else len(_ORDER)
        if not finite(row.best):
            return state, math.inf, row.number
        return state, -score(row.best, view.direction), row.number

    rows = sorted(view.rows, key=key)
    # The best model stays visible even when its trial has ended.
    return sorted(rows, key=lambda row: row.state != "running" and row.number != view.best_trial)


def finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a value to compare."""
    return value is not None and math.isfinite(value)


def figure(value: float | None) -> str:
    """A value in at most eight characters; a dash for None."""
    if value is None:
        return "-"
    plain = f"{value:.4f}"
    return plain if len(plain) <= 8 else f"{value:.2g}"
