"""Views of a running study, read from the table."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from operator import itemgetter
from typing import TypeGuard

from optuna_deadline._printable import printable
from optuna_deadline.allocation.records import Event, PlannedTrial, SegmentRow, Slot
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.tail import LATE_SECONDS, Tail
from optuna_deadline.history.text import format_count, request_sentence
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.planning.limits import SlotLimits, limited
from optuna_deadline.planning.placement.data_locality import isolated_hosts
from optuna_deadline.planning.reading import BestReports
from optuna_deadline.study.terms import Terms
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
    reason: str = ""  #: the planner's reason for its state
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
    best_value: float | None = None
    best_trial: int | None = None
    best_step: int | None = None
    slots_used: int = 0
    slots_total: int = 0  #: lent to the study
    slots_of_pool: int = 0
    shares: tuple[tuple[str, int], ...] = ()  #: slots by study, if several share the pool
    rows: tuple[TrialRow, ...] = ()
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


_DECISIONS = 40
#: The other events, mostly checkpoints, are many and are not shown.
_KINDS = (
    "plan", "gate", "pool", "failed", "lost", "settle", "hold", "pin", "limit", "drain", "price",
)  # fmt: skip
_SHOWN = {"retired": "pruned"}
_STARTS = "starts: "
#: Reasons of pauses that the rank's message explains better.
_BY_RANK = ("not among the best of its rung", "others go first")


class StudyWatcher:
    """Reads one study's table repeatedly; it writes nothing.

    Args:
        table: The allocation table.
        terms: The study's terms.
    """

    def __init__(self, table: AllocationTable, terms: Terms) -> None:
        self._table = table
        self._terms = terms
        self._events = Tail(lambda after: table.events(after, _KINDS))
        self._decisions: list[tuple[int, Decision]] = []  # with their events' ids
        self._best_reports = BestReports(terms.direction)
        self._curves: dict[int, dict[int, float]] = {}
        self._slots: dict[int, int] = {}  # by trial, as its last plan has it
        self._reports = Tail(table.reports)
        self._segments: dict[tuple[int, int], SegmentRow] = {}
        self._last_segments = 0.0
        self._ledger = (
            None
            if terms.budget is None
            else BillingLedger(table, tariff_of(terms.budget, terms.started))
        )

    def view(self) -> View:
        """The study now.

        Raises:
            StudyGone: The study was deleted.
        """
        self._table.follow_study()
        orders = self._table.orders("")
        now = orders.now
        reports = self._reports.read(now)
        self._best_reports.take(reports)
        for row in reports:
            self._curves.setdefault(row.number, {}).setdefault(row.step, row.value)
        for event in self._events.read(now):
            self._take_event(event)
        trials = self._table.trials()
        offered = [slot for slot in self._table.slots() if slot.offered_by]
        workers, mine = self._table.workers(), self._table.study_id
        best, hosts = self._best_reports.best(), _hosts(offered, mine)
        for segment in self._table.segments(self._last_segments - LATE_SECONDS):
            self._segments[segment.number, segment.fence] = segment
        self._last_segments = now
        segments = list(self._segments.values())
        limits = SlotLimits(self._terms.max_slots)
        for segment in segments:
            limits.take_segment(segment)
        for planned in trials:
            limits.take_trial(planned)
        ended = Counter(segment.outcome for segment in segments)
        starts = len(segments) - len({segment.number for segment in segments})
        return View(
            study=printable(self._terms.name),
            time_left=orders.deadline - now,
            deadline=datetime.fromtimestamp(orders.deadline, timezone.utc).astimezone(),
            duration=orders.deadline - self._terms.started,
            direction=self._terms.direction,
            gate_open=orders.gate_open and not orders.settled and now < orders.end,
            best_value=best.value if best else None,
            best_trial=best.number if best else None,
            best_step=best.step if best else None,
            slots_used=sum(slot.study_id == mine for slot in offered),
            slots_total=sum(slot.lent_to == mine for slot in offered),
            slots_of_pool=len(offered),
            shares=self._shares(offered),
            rows=tuple(self._row(planned, hosts.get(planned.number, ())) for planned in trials),
            decisions=tuple(decision for _, decision in self._decisions),
            pauses=ended["pause"] + ended["park"],
            resumes=max(0, starts - ended["resize"]),
            resizes=ended["resize"],
            drained=tuple(
                sorted({printable(row.host) for row in workers if row.drained is not None})
            ),
            alone=tuple(
                sorted(map(printable, isolated_hosts(r for r in workers if r.study_id == mine)))
            ),
            limits=tuple(map(printable, limited(trials, limits))),
            slot_hours=sum(
                row.slots * ((now if row.ended is None else row.ended) - row.granted)
                for row in segments
            )
            / 3600,
            spent=self._spent(now),
            budget=str(self._terms.budget or ""),
        )

    def _shares(self, slots: list[Slot]) -> tuple[tuple[str, int], ...]:
        if len({slot.lent_to for slot in slots}) < 2:
            return ()
        lent = Counter(slot.lent_to for slot in slots)
        return tuple((printable(row.name), lent[row.study_id]) for row in self._table.tenants())

    def _row(self, planned: PlannedTrial, hosts: tuple[str, ...]) -> TrialRow:
        curve = self._curves.get(planned.number, {})
        steps = sorted(curve)
        values = tuple(None if math.isnan(curve[step]) else curve[step] for step in steps)
        known = [value for value in values if value is not None]
        best = max(known, key=self._score, default=None)
        return TrialRow(
            number=planned.number,
            state=_SHOWN.get(planned.state, planned.state),
            slots=planned.slots if planned.owner is not None else 0,
            step=steps[-1] if steps else None,
            value=values[-1] if values else None,
            best=best,
            curve=values,
            reason=printable(planned.reason),
            held=planned.alive and planned.held is not None,
            pinned=planned.pinned if planned.alive else None,
            hosts=tuple(map(printable, hosts)),
        )

    def _spent(self, now: float) -> float | None:
        if self._ledger is None:
            return None
        self._ledger.read(now)
        return self._ledger.spent(now)

    def _take_event(self, event: Event) -> None:
        if event.kind == "plan":
            if not (words := self._plan_words(event)):
                return
        elif event.kind == "gate":
            words = (
                "new trials start again"
                if event.detail["open"]
                else "no new trial starts for now: none could catch up"
            )
        elif event.kind == "pool" and event.detail["slots"] != event.detail["before"]:
            words = f"the pool goes from {event.detail['before']} to {event.detail['slots']} slots"
        elif event.kind == "failed":
            words = f"trial {event.number} failed"
        elif event.kind == "lost":
            words = f"trial {event.number} lost its worker"
        elif event.kind == "settle":
            words = "the study has ended"
        elif not (words := request_sentence(event, f"trial {event.number}")):
            return
        said = event.id, Decision(event.at - self._terms.started, printable(words))
        insort(self._decisions, said, key=itemgetter(0))
        del self._decisions[:-_DECISIONS]

    def _plan_words(self, event: Event) -> str:
        """The numbers in a trial's plan; empty if only the reason has changed."""
        number, detail = int(event.number or 0), event.detail
        runs, reason = detail["mode"] == "run", str(detail["reason"])
        slots = int(str(detail["slots"])) if runs else 0
        before = self._slots.get(number, 0)
        self._slots[number] = slots
        step = max(self._curves.get(number, ()), default=None)
        at = "" if step is None else f" at step {step}"
        if not runs:
            why = self._rank_words(number) if reason in _BY_RANK else ""
            return f"trial {number} pauses{at}: {why or reason}"
        if slots == before:
            return ""
        size = format_count(slots, "slot")
        if before:
            return f"trial {number} goes from {before} to {size}{at}: {reason}"
        if reason.startswith(_STARTS):
            return f"trial {number} starts on {size}: {reason.removeprefix(_STARTS)}"
        return f"trial {number} resumes on {size}{at}: {reason}"

    def _score(self, value: float) -> float:
        return score(value, self._terms.direction)

    def _rank_words(self, number: int) -> str:
        """A trial's rank among all that have reported at its last step."""
        mine = self._curves.get(number)
        if not mine:
            return ""
        step = max(mine)
        scores = [self._score(curve[step]) for curve in self._curves.values() if step in curve]
        better = sum(other > self._score(mine[step]) for other in scores)
        return f"rank {better + 1} of {len(scores)}"


def _hosts(slots: list[Slot], study_id: int) -> dict[int, tuple[str, ...]]:
    """The hosts of trials by number; empty if there is one host only."""
    found: dict[int, set[str]] = defaultdict(set)
    for slot in slots if len({slot.host for slot in slots}) > 1 else ():
        if slot.study_id == study_id and slot.number is not None:
            found[slot.number].add(slot.host)
    return {number: tuple(sorted(hosts)) for number, hosts in found.items()}
