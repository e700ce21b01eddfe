"""Watches a running study: each look at it costs what has changed, not what there is."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime, timezone
from itertools import zip_longest
from operator import itemgetter

from optuna_deadline._garbage import collecting_later
from optuna_deadline._numbers import format_count
from optuna_deadline._printable import printable
from optuna_deadline.allocation.following import Following, News
from optuna_deadline.allocation.records import Event, PlannedTrial, SegmentRow, Slot
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.history.text import request_sentence
from optuna_deadline.live.view import Decision, TrialRow, View
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.planning.limits import SlotLimits, limited
from optuna_deadline.planning.placement.data_locality import isolated_hosts
from optuna_deadline.planning.reading import BestReports, RegimeNames
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.scores import score

_DECISIONS = 40
_BACK = 4_000  #: of the newest events, among which these are
#: The other events, mostly checkpoints, are many and are not shown.
_KINDS = (
    "plan", "gate", "pool", "failed", "lost", "settle", "hold", "pin", "limit", "drain", "price",
    "budget", "device", "clock",
)  # fmt: skip
#: A shorter time without new trials is not told: with few slots there are many.
_GATE_SECONDS = 5.0
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
        self._following = Following(table, _KINDS, _BACK)
        self._decisions: list[tuple[int, Decision]] = []  # with their events' ids
        self._gates: list[tuple[int, float, bool]] = []  # id, time, whether it opens
        self._best_reports = BestReports(terms.direction)
        self._regimes = RegimeNames()
        self._curves: dict[int, dict[int, float]] = defaultdict(dict)
        self._slots: dict[int, int] = {}  # by trial, as its last plan has it
        self._ranked: dict[int, list[float]] = {}  # all scores at a step, in this look
        self._hosts: Mapping[int, tuple[str, ...]] = {}
        self._rows: dict[int, TrialRow] = {}
        self._shown: tuple[TrialRow, ...] = ()
        self._segments = _SegmentSums()
        self._limits = SlotLimits(terms.max_slots)
        self._ledger = (
            None
            if terms.budget is None
            else BillingLedger(table, tariff_of(terms.budget, terms.started))
        )

    @collecting_later()
    def view(self) -> View:
        """The study now.

        Raises:
            StudyGone: The study was deleted.
        """
        self._table.follow_study()
        orders = self._table.orders("")
        now = orders.now
        offered = [slot for slot in self._table.slots() if slot.offered_by]
        workers, mine = self._table.workers(), self._table.study_id
        self._read(now, _hosts(offered, mine))
        best, ended = self._best_reports.best(), self._segments.ended
        live = [row for row in self._following.unreported.values() if row.alive]
        return View(
            study=printable(self._terms.name),
            time_left=orders.deadline - now,
            deadline=datetime.fromtimestamp(orders.deadline, timezone.utc).astimezone(),
            duration=orders.deadline - orders.started,
            direction=self._terms.direction,
            ended=orders.settled,
            gate_open=orders.gate_open and not orders.settled and now < orders.end,
            best_value=best.value if best else None,
            best_trial=best.number if best else None,
            best_step=best.step if best else None,
            slots_used=sum(slot.study_id == mine for slot in offered),
            slots_total=sum(slot.lent_to == mine for slot in offered),
            slots_of_pool=len(offered),
            shares=self._shares(offered),
            rows=self._shown,
            decisions=self._shown_decisions(now),
            pauses=ended["pause"] + ended["warm"],
            resumes=max(0, self._segments.restarts - ended["resize"]),
            resizes=ended["resize"],
            drained=tuple(
                sorted({printable(row.host) for row in workers if row.drained is not None})
            ),
            alone=tuple(
                sorted(map(printable, isolated_hosts(r for r in workers if r.study_id == mine)))
            ),
            limits=tuple(map(printable, limited(live, self._limits))),
            slot_hours=self._segments.slot_seconds(now) / 3600,
            spent=self._spent(now),
            budget=str(self._terms.budget or ""),
        )

    def _read(self, now: float, hosts: Mapping[int, tuple[str, ...]]) -> None:
        """Take what is new since the last look, and the present hosts of trials."""
        news = self._following.read(now)
        self._best_reports.take(news.reports)
        self._regimes.take(news.reports)
        for report in news.reports:
            self._curves[report.number].setdefault(report.step, report.value)
        self._ranked.clear()
        if not self._rows:
            self._slots = _sizes(news, news.events[0].at if news.events else now)
        for event in news.events:
            self._take_event(event)
        for before, segment in news.segments:
            self._segments.take(before, segment)
            self._limits.take_segment(segment)
        for planned in news.trials:
            self._limits.take_trial(planned)
        moved = {number for number, _ in hosts.items() ^ self._hosts.items()}
        self._hosts = hosts
        changed = (
            moved | {one.number for one in news.trials} | {one.number for one in news.reports}
        )
        trials = self._following.trials
        self._rows.update(
            (number, self._row(trials[number])) for number in changed & trials.keys()
        )
        if changed:
            self._shown = tuple(map(self._rows.__getitem__, trials))

    def _shares(self, slots: list[Slot]) -> tuple[tuple[str, int], ...]:
        if len({slot.lent_to for slot in slots}) < 2:
            return ()
        lent = Counter(slot.lent_to for slot in slots)
        return tuple((printable(row.name), lent[row.study_id]) for row in self._table.tenants())

    def _row(self, planned: PlannedTrial) -> TrialRow:
        curve = self._curves.get(planned.number, {})
        steps = sorted(curve)
        values = tuple(None if math.isnan(curve[step]) else curve[step] for step in steps)
        known = [value for value in values if value is not None]
        best = max(known, key=self._score, default=None)
        return TrialRow(
            number=planned.number,
            state=planned.shown_state,
            slots=planned.slots if planned.owner is not None else 0,
            step=steps[-1] if steps else None,
            value=values[-1] if values else None,
            best=best,
            curve=values,
            reason=self._regimes.explain(planned.number, printable(planned.reason)),
            held=planned.alive and planned.held is not None,
            pinned=planned.pinned if planned.alive else None,
            hosts=tuple(map(printable, self._hosts.get(planned.number, ()))),
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
            insort(self._gates, (event.id, event.at, bool(event.detail["open"])))
            del self._gates[: -4 * _DECISIONS]
            return
        elif event.kind == "pool" and event.detail["slots"] != event.detail["before"]:
            size = format_count(int(str(event.detail["slots"])), "slot")
            words = f"the pool goes from {event.detail['before']} to {size}"
        elif event.kind == "failed":
            words = f"trial {event.number} failed"
        elif event.kind == "lost":
            words = f"trial {event.number} lost its worker"
        elif event.kind == "settle":
            words = "the study has ended"
        elif not (words := request_sentence(event, f"trial {event.number}")):
            return
        entry = event.id, Decision(event.at - self._terms.started, printable(words))
        insort(self._decisions, entry, key=itemgetter(0))
        del self._decisions[:-_DECISIONS]

    def _shown_decisions(self, now: float) -> tuple[Decision, ...]:
        """The newest decisions; the gate's only once it has stayed closed for a while."""
        found, began = list(self._decisions), self._terms.started
        for (closed, at, is_open), then in zip_longest(self._gates, self._gates[1:]):
            until = now if then is None else then[1]
            if is_open or until - at < _GATE_SECONDS:
                continue
            words = "no new trial starts for now: none could catch up"
            found.append((closed, Decision(at + _GATE_SECONDS - began, words)))
            if then is not None:
                found.append((then[0], Decision(until - began, "new trials start again")))
        in_time = sorted(found, key=lambda entry: (entry[1].at, entry[0]))
        return tuple(one for _, one in in_time[-_DECISIONS:])

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
            planned = self._following.trials.get(number)
            if planned is not None and not planned.alive:
                return ""  # only its end is worth a line
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
        return -math.inf if math.isnan(value) else score(value, self._terms.direction)

    def _rank_words(self, number: int) -> str:
        """A trial's rank among all that have reported at its last step."""
        mine = self._curves.get(number)
        if not mine:
            return ""
        step = max(mine)
        if step not in self._ranked:
            there = (curve[step] for curve in self._curves.values() if step in curve)
            self._ranked[step] = sorted(map(self._score, there))
        scores = self._ranked[step]
        better = len(scores) - bisect_right(scores, self._score(mine[step]))
        return f"rank {better + 1} of {len(scores)}"


class _SegmentSums:
    """Sums over all segments of a study."""

    def __init__(self) -> None:
        self.ended: Counter[str | None] = Counter()  #: by outcome
        self._count = 0
        self._trials: set[int] = set()
        self._seconds = 0.0  # slot-seconds of segments that have ended
        self._running: dict[tuple[int, int], SegmentRow] = {}

    def take(self, before: SegmentRow | None, row: SegmentRow) -> None:
        """Record a segment that was as ``before``."""
        self._count += before is None
        self._trials.add(row.number)
        if row.ended is None:
            self._running[row[:2]] = row
        elif before is None or before.ended is None:
            self.ended[row.outcome] += 1
            self._seconds += row.slots * (row.ended - row.granted)
            self._running.pop(row[:2], None)

    @property
    def restarts(self) -> int:
        """The segments that were not the first of their trial."""
        return self._count - len(self._trials)

    def slot_seconds(self, now: float) -> float:
        """The slot-seconds of all segments until now."""
        running = sum(row.slots * (now - row.granted) for row in self._running.values())
        return self._seconds + running


def _sizes(news: News, at: float) -> dict[int, int]:
    """The sizes of the gangs that trained at an instant, by trial."""
    segments = (row for _, row in news.segments)
    return {
        row.number: row.slots
        for row in segments
        if row.granted < at < (math.inf if row.ended is None else row.ended)
    }


def _hosts(slots: list[Slot], study_id: int) -> dict[int, tuple[str, ...]]:
    """The hosts of trials by number; empty if there is one host only."""
    found: dict[int, set[str]] = defaultdict(set)
    for slot in slots if len({slot.host for slot in slots}) > 1 else ():
        if slot.study_id == study_id and slot.number is not None:
            found[slot.number].add(slot.host)
    return {number: tuple(sorted(hosts)) for number, hosts in found.items()}
