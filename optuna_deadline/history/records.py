"""A study's history as frozen values: intervals of trials and slots, curves, improvements.

Figures, notes and the live page are made of it. Instants are the database's seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from optuna_deadline.allocation.records import (
    Event,
    PlannedTrial,
    ReportRow,
    SegmentRow,
    Slot,
    Worker,
)
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.scores import score


@dataclass(frozen=True)
class SlotInterval:
    """A trial's hold of one slot. Holds of one slot never overlap."""

    slot: int
    number: int
    start: float
    end: float | None  #: None if it has not ended
    study_id: int | None = None


@dataclass(frozen=True)
class SegmentInterval:
    """One segment: a trial on its slots, with the reasons for its start and its end."""

    number: int
    fence: int
    slots: tuple[int, ...]
    worker: str | None
    start: float
    end: float | None  #: None while it trains
    reason: str  #: the plan's reason for its start
    end_reason: str = ""  #: pause, resize, deadline, lost, ...
    plan_end_reason: str = ""  #: the plan's reason for its end

    def until(self, now: float) -> float:
        """Its end, or now."""
        return now if self.end is None else self.end


@dataclass(frozen=True)
class WaitInterval:
    """A trial without a slot that can still be trained."""

    start: float
    end: float | None
    reason: str


@dataclass(frozen=True)
class TrialTimeline:
    """One trial from its opening to its end."""

    number: int
    opened: float
    state: str  #: ready, running, paused, retired, failed, complete
    segments: tuple[SegmentInterval, ...] = ()
    waits: tuple[WaitInterval, ...] = ()
    ended: float | None = None
    reason: str = ""  #: the planner's reason for its state

    @property
    def slots(self) -> int:
        """Slots that it holds now."""
        last = self.segments[-1] if self.segments else None
        return len(last.slots) if last is not None and last.end is None else 0

    def slot_seconds(self, now: float) -> float:
        """Slot-seconds that it held so far."""
        return sum(len(spell.slots) * (spell.until(now) - spell.start) for spell in self.segments)


#: Events that are read: all but checkpoints, which are many.
EVENT_KINDS = (
    "open", "plan", "acquire", "start", "resume", "release", "reap", "lost",
    "paused", "retired", "failed", "complete", "gate", "pool", "settle", "elect",
    "hold", "pin", "limit", "drain", "price", "budget", "rest", "register", "device", "clock",
    "fold",
)  # fmt: skip
_ENDED = ("retired", "failed", "complete")
#: Ends that the plan has ordered; other ends have other reasons.
ORDERED = ("pause", "warm", "resize", "stop")


def slot_intervals(events: Iterable[Event]) -> list[SlotInterval]:
    """The holders of every slot, by the start of each hold.

    Args:
        events: In the order of their ids, of one study or of a whole pool.
    """
    open_: dict[int, int] = {}
    found: list[SlotInterval] = []
    for event in events:
        slot = event.slot
        if slot is None:
            continue
        if event.kind == "acquire" and event.number is not None:
            _close(found, open_, slot, event.at)  # its release was read late
            open_[slot] = len(found)
            found.append(SlotInterval(slot, event.number, event.at, None, event.study_id))
        elif event.kind in ("release", "reap"):
            _close(found, open_, slot, event.at)
    return found


def _close(found: list[SlotInterval], open_: dict[int, int], slot: int, at: float) -> None:
    place = open_.pop(slot, None)
    if place is not None:
        found[place] = replace(found[place], end=at)


@dataclass
class _TimelineBuilder:
    """One trial's timeline as far as it has been read."""

    opened: float
    state: str = "ready"
    segments: list[SegmentInterval] = field(default_factory=list)
    waits: list[WaitInterval] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    ordered: str = ""
    ended: float | None = None

    def close_wait(self, at: float) -> None:
        if self.waits and self.waits[-1].end is None:
            self.waits[-1] = replace(self.waits[-1], end=at)

    def close_segment(self, at: float, ended: str) -> None:
        if self.segments and self.segments[-1].end is None:
            why = self.ordered if ended in ORDERED else ""
            self.segments[-1] = replace(
                self.segments[-1], end=at, end_reason=ended, plan_end_reason=why
            )


def trial_timelines(events: Sequence[Event]) -> list[TrialTimeline]:
    """Every trial's timeline, by number.

    Args:
        events: One study's, in the order of their ids.
    """
    builders: dict[int, _TimelineBuilder] = {}
    for event in events:
        if event.number is None:
            continue
        one = builders.setdefault(event.number, _TimelineBuilder(event.at))
        if event.kind == "plan":
            one.ordered = str(event.detail.get("reason", ""))
        elif event.kind == "acquire" and event.slot is not None:
            one.taken.append(event.slot)
        elif event.kind in ("start", "resume"):
            _begin(one, event)
        elif event.kind == "lost":
            one.close_segment(event.at, "lost")
            _wait(one, event.at, "its worker died")
        elif event.kind == "paused":
            why = str(event.detail.get("reason", ""))
            one.close_segment(event.at, why)
            _wait(one, event.at, one.ordered or why)
        elif event.kind in _ENDED:
            _end(one, event)
    return [
        TrialTimeline(
            number, one.opened, one.state, tuple(one.segments), tuple(one.waits), one.ended,
            one.ordered,
        )
        for number, one in sorted(builders.items())
    ]  # fmt: skip


def _begin(one: _TimelineBuilder, event: Event) -> None:
    one.close_segment(event.at, "lost")
    one.close_wait(event.at)
    one.state = "running"
    one.segments.append(
        SegmentInterval(
            number=event.number or 0,
            fence=event.fence or 0,
            slots=tuple(sorted(one.taken)),
            worker=event.worker,
            start=event.at,
            end=None,
            reason=str(event.detail.get("reason", "")),
        )
    )
    one.taken = []


def _wait(one: _TimelineBuilder, at: float, why: str) -> None:
    one.state = "paused"
    one.waits.append(WaitInterval(at, None, why))


def _end(one: _TimelineBuilder, event: Event) -> None:
    """A trial ends with its segment (then the event has a fence), or while it waits."""
    why = str(event.detail.get("reason", ""))
    if event.fence is None:
        one.ordered = why
    one.close_segment(event.at, why)
    one.close_wait(event.at)
    one.state, one.ended = event.kind, event.at


class Improvement(NamedTuple):
    """A report that is better than all earlier ones."""

    at: float
    value: float
    number: int
    step: int


def curves_of(reports: Iterable[ReportRow]) -> dict[int, list[ReportRow]]:
    """Each trial's finite reports in the order of their steps; trials without any are left out."""
    curves: dict[int, list[ReportRow]] = defaultdict(list)
    for row in reports:
        if math.isfinite(row.value):
            curves[row.number].append(row)
    return {number: sorted(rows, key=lambda row: row.step) for number, rows in curves.items()}


def best_so_far(reports: Iterable[ReportRow], direction: str) -> list[Improvement]:
    """The reports that were better than all before them; NaN and infinities never are."""
    found: list[Improvement] = []
    for row in sorted(reports, key=lambda row: (row.at, row.id)):
        if not math.isfinite(row.value):
            continue
        if not found or score(row.value, direction) > score(found[-1].value, direction):
            found.append(Improvement(row.at, row.value, row.number, row.step))
    return found


@dataclass(frozen=True)
class History:
    """A study at one moment, with its past. Instants are the database's seconds."""

    name: str
    study_id: int
    direction: str  #: "minimize" or "maximize"
    started: float
    deadline: float
    now: float
    settled: float | None = None  #: when it was settled
    trials: tuple[PlannedTrial, ...] = ()
    segments: tuple[SegmentRow, ...] = ()
    reports: tuple[ReportRow, ...] = ()
    events: tuple[Event, ...] = ()  #: the study's own, oldest first
    pool_events: tuple[Event, ...] = ()  #: slots that joined, left or were lent to a study
    slots: tuple[Slot, ...] = ()  #: of the pool
    workers: tuple[Worker, ...] = ()  #: of the pool, the live ones
    budget: Budget | None = None
    policy: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    plain: bool = False  #: trained by ``study.optimize`` alone, so that it has no slots

    @property
    def end(self) -> float:
        """The end of the recorded time: now, or when the study was settled."""
        return self.now if self.settled is None else min(self.now, self.settled)

    @property
    def time_left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - self.now

    @property
    def money_events(self) -> list[Event]:
        """The events of the bill."""
        joined = [
            event
            for event in self.pool_events
            if event.kind == "register" and event.study_id == self.study_id
        ]
        return [*self.events, *joined]

    @cached_property
    def slot_intervals(self) -> list[SlotInterval]:
        """The holders of every slot."""
        return slot_intervals(self.events)

    @cached_property
    def timelines(self) -> list[TrialTimeline]:
        """Every trial's timeline, by number."""
        return trial_timelines(self.events)

    @cached_property
    def curves_by_trial(self) -> dict[int, list[ReportRow]]:
        """Each trial's finite reports by step; trials without any are left out."""
        return curves_of(self.reports)

    @cached_property
    def improvements(self) -> list[Improvement]:
        """The reports that were better than all before them."""
        return best_so_far(self.reports, self.direction)
