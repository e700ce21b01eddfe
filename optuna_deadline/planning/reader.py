"""From the table to a snapshot: only what changed since the last look is read again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from optuna_deadline.allocation.records import Desired, ReportRow, SegmentRow, Slot, Worker
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.forecasting.overheads import Overhead, learn_overhead
from optuna_deadline.forecasting.throughput import Pace, Throughputs
from optuna_deadline.policies.snapshot import WORST, Report, Snapshot, TrialView

#: PostgreSQL numbers rows before it commits them: a lower id may appear after a higher one.
_LATE_ROWS = 200
_LATE_SECONDS = 10.0


@dataclass(frozen=True)
class Reading:
    """A snapshot, with the rows behind it that the planner acts on."""

    snapshot: Snapshot
    trials: tuple[Desired, ...]
    workers: tuple[Worker, ...]
    slots: tuple[Slot, ...]
    offers: Mapping[str, int] | None = None  #: slots by worker, where the study may not use all

    @property
    def capacities(self) -> Mapping[str, int]:
        """Slots by live worker that the study may use."""
        if self.offers is not None:
            return self.offers
        alive = {worker.id for worker in self.workers}
        return dict(Counter(slot.provider for slot in self.slots if slot.provider in alive))


class SnapshotReader:
    """Reads one study's state from the table, incrementally.

    Args:
        table: The allocation table.
        direction: "minimize" or "maximize".
        started: When the study began, in the database's seconds.
    """

    def __init__(self, table: AllocationStore, direction: str, started: float) -> None:
        self._table = table
        self._sign = 1.0 if direction == "maximize" else -1.0
        self._started = started
        self._last_report = 0
        self._late: set[int] = set()  # ids of the newest reports, which are read again
        self._reports: dict[int, dict[int, Report]] = {}
        self._last_segments = 0.0
        self._segments: dict[tuple[int, int], SegmentRow] = {}
        self._throughputs = Throughputs()
        self._overhead = Overhead()
        self._views: dict[int, tuple[Desired, TrialView]] = {}
        self._stale: set[int] = set()  # trials with a report or a new pace since the last look

    def read(self, deadline: float) -> Reading:
        """The state now, with the deadline as it stands."""
        now = self._table.now()
        trials = tuple(self._table.trials())
        self._take_reports(self._table.reports(max(0, self._last_report - _LATE_ROWS)))
        self._take_segments(self._table.segments(self._last_segments - _LATE_SECONDS))
        self._last_segments = now
        workers = tuple(self._table.workers())
        slots = tuple(self._table.slots())
        capacities = Reading(
            Snapshot(now, self._started, deadline, 0, 0), trials, workers, slots
        ).capacities
        snapshot = Snapshot(
            now=now,
            started=self._started,
            deadline=deadline,
            capacity=sum(capacities.values()),
            largest_gang=max(capacities.values(), default=0),
            trials=self._see(trials),
            speedup=self._throughputs.speedup,
            overhead=self._overhead,
        )
        return Reading(snapshot, trials, workers, slots)

    def _take_reports(self, rows: list[ReportRow]) -> None:
        for row in rows:
            if row.id in self._late:
                continue
            known = self._reports.setdefault(row.number, {})
            if row.step not in known:
                score = WORST if math.isnan(row.value) else self._sign * row.value
                known[row.step] = Report(row.step, score, row.trained)
                self._stale.add(row.number)
        if rows:
            self._last_report = max(self._last_report, rows[-1].id)
            self._late = {row.id for row in rows}

    def _take_segments(self, rows: list[SegmentRow]) -> None:
        costs_changed = False
        for row in rows:
            before = self._segments.get((row.number, row.fence))
            if before is row or before == row:
                continue
            self._segments[row.number, row.fence] = row
            if before is None or (before.startup, before.stop) != (row.startup, row.stop):
                costs_changed = True
            if (pace := _pace(row)) is not None:
                self._throughputs.take(row.fence, pace)
        self._stale |= self._throughputs.learn()
        if costs_changed:
            ordered = sorted(self._segments.values(), key=lambda row: row.granted)
            self._overhead = learn_overhead(
                [row.startup for row in ordered if row.startup is not None],
                [row.stop for row in ordered if row.stop is not None],
            )

    def _see(self, lines: tuple[Desired, ...]) -> tuple[TrialView, ...]:
        """The trials as a policy sees them; the same objects as long as nothing has changed."""
        views, stale, seen = self._views, self._stale, []
        for line in lines:
            known = views.get(line.number)
            if known is None or line.number in stale or not _same(known[0], line):
                known = views[line.number] = line, self._view(line)
            seen.append(known[1])
        stale.clear()
        return tuple(seen)

    def _view(self, line: Desired) -> TrialView:
        steps = self._reports.get(line.number, {})
        return TrialView(
            number=line.number,
            # Who was told to stop is given up, though it may hold its slots for a moment.
            state="retired" if line.alive and line.mode == "stop" else line.state,
            slots=line.slots if line.alive and line.mode == "run" else 0,
            reports=tuple([steps[step] for step in sorted(steps)]),
            changed=line.since,
            horizon=line.horizon,
            step_seconds=self._throughputs.step_seconds.get(line.number),
        )


def _same(before: Desired, line: Desired) -> bool:
    return before is line or before == line


def _pace(row: SegmentRow) -> Pace | None:
    if row.position_from is None or row.position_to is None or row.trained is None:
        return None
    return Pace(row.number, row.slots, row.position_to - row.position_from, row.trained)
