"""Builds snapshots from the table by reading what changed; learns which workers can meet."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from operator import attrgetter

from optuna_deadline.allocation.following import Following
from optuna_deadline.allocation.records import Orders, PlannedTrial, ReportRow, SegmentRow, Worker
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.forecasting.reporting import reported_step, trained_steps
from optuna_deadline.forecasting.throughput import (
    KEPT_COSTS,
    PRIOR_EXPONENT,
    Overhead,
    SegmentPace,
    Speedup,
    Throughputs,
    learn_overhead,
)
from optuna_deadline.planning.cross_host import NO_GROUPS, WorkerGroups, groups_of
from optuna_deadline.planning.limits import SlotLimits
from optuna_deadline.planning.reading import BestReports, Reading
from optuna_deadline.policies.api import WORST, Report, Request, Snapshot, TrialView
from optuna_deadline.policies.curve import NO_REPORTS, ReportCurve
from optuna_deadline.values.scores import score

#: After this many gangs in a row whose ranks did not meet, no gang for this many seconds.
_MAX_UNMET, _UNMET_SECONDS = 2, 600.0

Key = tuple[int, int]  #: number and fence


class RendezvousHistory:
    """Remembers the workers of each gang, and whether its ranks met."""

    def __init__(self) -> None:
        self._gang_workers: dict[Key, frozenset[str]] = {}
        self._ended: dict[Key, SegmentRow] = {}

    def take_trials(self, planned_rows: Iterable[PlannedTrial]) -> None:
        """Record the workers of running gangs; the table knows them only while a gang trains."""
        for planned in planned_rows:
            if planned.owner is not None and planned.others:
                team = frozenset((planned.owner, *(name for name, _ in planned.others)))
                # before a plan moves it
                self._gang_workers.setdefault((planned.number, planned.fence), team)

    def take_segment(self, row: SegmentRow) -> None:
        """Record a segment, again once it has ended."""
        if row.workers > 1 and row.ended is not None:
            self._ended[row.number, row.fence] = row

    def allowed_groups(self, workers: Iterable[Worker], now: float) -> WorkerGroups:
        """The workers that may share gangs now.

        Two workers that were in two consecutive gangs whose ranks did not meet are kept apart for
        ten minutes. If the gangs are unknown, all hosts are kept apart.

        Args:
            workers: Live workers.
            now: The time.
        """
        if not any(_unmet_lately(row, now) for row in self._ended.values()):
            return groups_of(workers)
        latest = sorted(self._ended.values(), key=_ended_at, reverse=True)
        if _failed(latest, now) and any(
            self._workers_of(row) is None for row in latest[:_MAX_UNMET]
        ):
            return NO_GROUPS
        suspects = {pair for row in latest if _unmet_lately(row, now) for pair in self._pairs(row)}
        apart = {
            pair
            for pair in suspects
            if _failed(
                [row for row in latest if pair <= (self._workers_of(row) or frozenset())], now
            )
        }
        return groups_of(workers, apart)

    def _workers_of(self, row: SegmentRow) -> frozenset[str] | None:
        return self._gang_workers.get((row.number, row.fence))

    def _pairs(self, row: SegmentRow) -> Iterator[frozenset[str]]:
        return map(frozenset, combinations(sorted(self._workers_of(row) or ()), 2))


def _failed(newest_first: list[SegmentRow], now: float) -> bool:
    last = newest_first[:_MAX_UNMET]
    return (
        len(last) == _MAX_UNMET
        and all(row.outcome == "unmet" for row in last)
        and _unmet_lately(last[0], now)
    )


def _unmet_lately(row: SegmentRow, now: float) -> bool:
    return row.outcome == "unmet" and now < _ended_at(row) + _UNMET_SECONDS


def _ended_at(row: SegmentRow) -> float:
    return row.ended or 0.0


_STEP = attrgetter("step")


class SnapshotReader:
    """Reads one study's state from the table, incrementally.

    Args:
        table: The allocation table.
        direction: "minimize" or "maximize".
        max_slots: The most slots of a trial in the study's terms.
        exponent: Of the speed of gangs that were not measured.

    Attributes:
        limits: On how many slots its trials can train.
        best_reports: The best report of each trial in the last reading.
    """

    def __init__(
        self,
        table: AllocationTable,
        direction: str,
        max_slots: int | None = None,
        exponent: float = PRIOR_EXPONENT,
    ) -> None:
        self.limits = SlotLimits(max_slots)
        self._table = table
        self._following = Following(table)
        self.best_reports = BestReports(direction)
        self._reports = _Reports(direction)
        self._rendezvous_history = RendezvousHistory()
        self._priced = Speedup()
        self._slot_seconds_done = 0.0
        self._throughputs = Throughputs(exponent)
        self._startups, self._stops = _Costs(), _Costs()
        self._overhead = Overhead()
        self._stale = set[int]()  # trials whose views are older than what was read
        self._places: dict[int, int] = {}
        self._live_trials = 0
        self._views: list[TrialView] = []
        self._seen: tuple[TrialView, ...] = ()
        self._requests: tuple[Request, ...] = ()

    def own_step(self, trained: int) -> int:
        """The objective's step after a number of trained steps."""
        return reported_step(trained, self._reports.first)

    def begin_term(self) -> None:
        """Read every trial at the next reading: some may have ended under another planner."""
        self._following.read_all()

    def read(self, orders: Orders) -> Reading:
        """Read the current state; start and deadline are those of the orders."""
        table = self._table
        now = table.now()
        news = self._following.read(now)
        planned_rows = self._following.unreported
        ended = [planned for planned in planned_rows.values() if not planned.alive]
        self.best_reports.take(news.reports)
        first, schedule = self._reports.first, self._throughputs.schedule
        self._stale |= self._reports.take(news.reports)
        for row in news.reports:
            self._throughputs.take_report(row.number, row.step, row.trained, row.slots, row.regime)
        if (self._reports.first, self._throughputs.schedule) != (first, schedule):
            self._stale |= self._following.trials.keys()
        self._stale |= self._take_segments(news.segments)
        self._take_trials(news.trials)
        roster = table.roster()
        capacities = roster.lent
        reap_from = math.inf if roster.lease is None else roster.lease + table.grace
        seen = self._update_views()
        crossing = self._rendezvous_history.allowed_groups(roster.workers, now)
        snapshot = Snapshot(
            now=now,
            started=orders.started,
            deadline=orders.deadline,
            capacity=sum(capacities.values()),
            largest_gang=crossing.largest(capacities),
            trials=seen,
            speedup=self._speedup(crossing, capacities),
            overhead=self._overhead,
            requests=self._requests,
            max_slots=self.limits.max_slots,
        )
        return Reading(
            snapshot,
            planned_rows,
            ended,
            roster.workers,
            capacities,
            roster.offered,
            self._slot_seconds_done,
            self._live_trials,
            reap_from,
            crossing,
        )

    def _speedup(self, crossing: WorkerGroups, capacities: Mapping[str, int]) -> Speedup:
        """S(k), also for gangs that no single worker can hold; one object until it changes."""
        learned = self._throughputs.speedup
        if not crossing.groups:
            return learned
        priced = replace(learned, pack=max(capacities.values(), default=0))
        if priced != self._priced:
            self._priced = priced
        return self._priced

    def _take_segments(self, changes: list[tuple[SegmentRow | None, SegmentRow]]) -> set[int]:
        """Record segments; returns the trials with a first step or a new pace."""
        costs_changed = False
        began = set[int]()
        for before, row in changes:
            self._rendezvous_history.take_segment(row)
            self.limits.take_segment(row)
            self._slot_seconds_done += _slot_seconds(row) - (
                0.0 if before is None else _slot_seconds(before)
            )
            if row.stepped != (before is not None and before.stepped):
                began.add(row.number)
            if before is None or (before.startup, before.stop) != (row.startup, row.stop):
                costs_changed = True
                self._startups.take(row, row.startup)
                self._stops.take(row, row.stop)
            if row.trained is not None and (pace := _pace(row)) is not None:
                self._throughputs.take(row.fence, pace)
        if costs_changed:
            self._overhead = learn_overhead(self._startups.newest(), self._stops.newest())
        return began | self._throughputs.learn()

    def _take_trials(self, rows: list[PlannedTrial]) -> None:
        if not rows:
            return
        for planned in rows:
            self._stale.add(planned.number)
            self.limits.take_trial(planned)
        self._rendezvous_history.take_trials(rows)
        self._requests = tuple(
            Request(planned.number, planned.held is not None, planned.pinned)
            for planned in self._following.unreported.values()
            if (planned.held is not None or planned.pinned is not None) and planned.alive
        )

    def _update_views(self) -> tuple[TrialView, ...]:
        """The trials as a policy sees them; unchanged trials keep their objects."""
        if self._stale:
            for number in sorted(self._stale & self._following.trials.keys()):
                self._update_view(number)
            self._stale.clear()
            self._seen = tuple(self._views)
        return self._seen

    def _update_view(self, number: int) -> None:
        view = self._view(self._following.trials[number])
        place = self._places.get(number)
        if place is not None:
            self._live_trials += view.alive - self._views[place].alive
            self._views[place] = view
            return
        self._live_trials += view.alive
        self._views.append(view)
        self._places[number] = len(self._views) - 1
        if len(self._views) > 1 and self._views[-2].number > number:
            self._views.sort(key=attrgetter("number"))
            self._places = {seen.number: place for place, seen in enumerate(self._views)}

    def _view(self, planned: PlannedTrial) -> TrialView:
        return TrialView(
            number=planned.number,
            # A trial with the order to stop is retired, though it may hold its slots for a moment.
            state="retired" if planned.alive and planned.mode == "stop" else planned.state,
            slots=planned.slots if planned.mode == "run" and planned.alive else 0,
            reports=self._reports.of(planned.number),
            changed=planned.since,
            horizon=self._reports.trained_steps(planned.horizon),
            step_seconds=self._throughputs.step_seconds.get(planned.number),
            changes_ahead=self._throughputs.changes_ahead(
                planned.number, trained_steps(0, self._reports.first)
            ),
            batch=planned.batch,
            slot_limit=planned.slot_limit,
            pausable=planned.pausable,
            starting=self._is_starting(planned),
        )

    def _is_starting(self, planned: PlannedTrial) -> bool:
        row = self._following.segments.get((planned.number, planned.fence))
        return planned.owner is not None and not (row is not None and row.stepped)


class _Reports:
    """Every trial's reports by trained steps, updated as they arrive."""

    def __init__(self, direction: str) -> None:
        self._direction = direction
        self.first = 1  #: 0 if the study's steps count from there
        self._sorted: dict[int, ReportCurve] = {}

    def trained_steps(self, step: int | None) -> int | None:
        """The steps that are trained at a step of the objective's."""
        return None if step is None else trained_steps(step, self.first)

    def of(self, number: int) -> ReportCurve:
        """One trial's reports by step."""
        return self._sorted.get(number, NO_REPORTS)

    def take(self, rows: list[ReportRow]) -> set[int]:
        """Record new rows in any order; returns their trials.

        The first report of step 0 changes :attr:`first` and the steps of all trials.
        """
        if self.first and any(row.step == 0 for row in rows):
            self.first = 0
            for number, reports in self._sorted.items():
                self._sorted[number] = ReportCurve(
                    [one._replace(step=one.step + 1) for one in reports]
                )
        return {row.number for row in rows if self._add(row)}

    def _add(self, row: ReportRow) -> bool:
        number, step, value = row.number, trained_steps(row.step, self.first), row.value
        before = self._sorted.get(number) or ReportCurve()
        found = WORST if math.isnan(value) else score(value, self._direction)
        report = Report(step, found, row.trained)
        if not before or before.last.step < step:
            self._sorted[number] = before.followed_by(report)
            return True
        place = bisect_left(before, step, key=_STEP)
        if before[place].step == step:
            return False
        self._sorted[number] = ReportCurve((*before[:place], report, *before[place:]))
        return True


class _Costs:
    """The cost of the newest segments, in the order of their grants."""

    def __init__(self) -> None:
        self._known: list[tuple[float, ...]] = []  # granted, number, fence, seconds

    def take(self, row: SegmentRow, seconds: float | None) -> None:
        """Record the cost of a segment once it is known."""
        if seconds is None:
            return
        key, known = (row.granted, row.number, row.fence), self._known
        place = bisect_left(known, key)
        if place < len(known) and known[place][:3] == key:
            known[place] = (*key, seconds)
        else:
            known.insert(place, (*key, seconds))
            del known[:-KEPT_COSTS]

    def newest(self) -> list[float]:
        """Seconds, the newest last."""
        return [cost[3] for cost in self._known]


def _slot_seconds(row: SegmentRow) -> float:
    return row.slots * (row.trained or 0.0)


def _pace(row: SegmentRow) -> SegmentPace | None:
    if row.position_from is None or row.position_to is None or row.trained is None:
        return None
    steps = row.position_to - row.position_from
    return SegmentPace(row.number, row.slots, steps, row.trained, row.workers > 1)
