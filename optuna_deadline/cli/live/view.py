"""What a live view shows: plain values, read from the table by whoever has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TypeGuard


@dataclass(frozen=True)
class TrialRow:
    """One trial, as far as it has come."""

    number: int
    state: str  #: ready, running, paused, complete, pruned, retired or failed
    slots: int = 0
    step: int | None = None  #: of the last report
    value: float | None = None  #: the last one
    best: float | None = None
    curve: tuple[float | None, ...] = ()  #: all reports, in the order of their steps
    reason: str = ""  #: why it is in this state, in the planner's words
    held: bool = False  #: a person wants it to have no slots
    pinned: int | None = None  #: how many slots a person wants it to have
    hosts: tuple[str, ...] = ()  #: where it trains, in a study on several

    @property
    def words(self) -> str:
        """Its state, where it trains, and what a person asks of it."""
        state = f"{self.state} on {'+'.join(self.hosts)}" if self.hosts else self.state
        if self.held:
            return f"{state}, held"
        return state if self.pinned is None else f"{state}, pinned {self.pinned}"


@dataclass(frozen=True)
class Decision:
    """Something that the planner decided."""

    at: float  #: seconds since the study started
    words: str


@dataclass(frozen=True)
class View:
    """A study at one moment."""

    study: str
    time_left: float  #: seconds; below zero once the deadline is over
    deadline: datetime
    duration: float  #: seconds from the start to the deadline
    maximize: bool = True
    gate_open: bool = True
    best_value: float | None = None
    best_trial: int | None = None
    best_step: int | None = None
    slots_used: int = 0
    slots_total: int = 0  #: lent to the study
    slots_of_pool: int = 0
    shares: tuple[tuple[str, int], ...] = ()  #: slots by study, where several share the pool
    rows: tuple[TrialRow, ...] = ()
    decisions: tuple[Decision, ...] = ()  #: the last ones, oldest first
    pauses: int = 0
    resumes: int = 0
    resizes: int = 0
    drained: tuple[str, ...] = ()  #: hosts of the pool that are being emptied
    alone: tuple[str, ...] = ()  #: hosts of the study whose checkpoints others do not reach
    limits: tuple[str, ...] = ()  #: what cannot be trained on many slots, and why
    slot_hours: float = 0.0  #: that trials have held slots
    spent: float | None = None  #: money; None where slots cost nothing
    budget: str = ""  #: all that may be spent, in words


#: The states that the reader cares about most come first.
_ORDER = ("running", "ready", "paused", "complete", "failed", "pruned", "retired")


def by_relevance(view: View) -> list[TrialRow]:
    """The rows, those that train first, and the better value first among equals."""

    def key(row: TrialRow) -> tuple[int, float, int]:
        state = _ORDER.index(row.state) if row.state in _ORDER else len(_ORDER)
        if not finite(row.best):
            return state, math.inf, row.number
        return state, -row.best if view.maximize else row.best, row.number

    rows = sorted(view.rows, key=key)
    # The best model in hand stays in sight even when its trial has ended.
    return sorted(rows, key=lambda row: row.state != "running" and row.number != view.best_trial)


def finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a value that can be compared."""
    return value is not None and math.isfinite(value)


def figure(value: float | None) -> str:
    """A value in at most eight characters; a dash where there is none."""
    if value is None:
        return "-"
    plain = f"{value:.4f}"
    return plain if len(plain) <= 8 else f"{value:.2g}"


def clock(seconds: float) -> str:
    """Seconds as a person reads them: ``9.5 s``, ``42 s``, ``1:05``, ``2:07:00``."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
