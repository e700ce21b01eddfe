"""Follows the rows of one study: each reading gives what is new since the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from optuna_deadline.allocation.records import Event, PlannedTrial, ReportRow, SegmentRow
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.tail import LATE_SECONDS, Tail


@dataclass(frozen=True)
class News:
    """The rows that are new or have changed since the last reading."""

    trials: list[PlannedTrial]  #: by number
    reports: list[ReportRow]  #: by id; one that was committed late may have a lower id
    #: By the time of their grant, each after itself as last read (None if it was not there).
    segments: list[tuple[SegmentRow | None, SegmentRow]]
    events: list[Event]  #: as the reports


class Following:
    """Reads the rows of one study on.

    Args:
        table: The allocation table.
        kinds: The kinds of events to follow.
        newest: The number of the study's newest events to begin with; None for all.

    Attributes:
        trials: All trials by number, as last read.
        unreported: Those of them that live, or whose end Optuna does not know yet.
        segments: All segments by number and fence, as last read.
    """

    def __init__(
        self, table: AllocationTable, kinds: Sequence[str] = (), newest: int | None = None
    ) -> None:
        self.trials: dict[int, PlannedTrial] = {}
        self.unreported: dict[int, PlannedTrial] = {}
        self.segments: dict[tuple[int, int], SegmentRow] = {}
        self._table = table
        self._reports = Tail(table.reports)
        self._kinds, self._newest = kinds, newest
        self._events: Tail[Event] | None = None
        self._last_look = 0.0
        self._news = News([], [], [], [])  # of a reading that a database error has cut off
        self._all = True  # the next reading reads every trial

    def read_all(self) -> None:
        """Read every trial at the next reading: others may have opened and ended some."""
        self._all = True

    def read(self, now: float) -> News:
        """The news until now.

        Args:
            now: The database's time, read before.
        """
        news = self._news
        # A trial is read before its reports, so that those of an ended one are complete.
        news.trials.extend(self._new_trials())
        for reports in self._reports.pages(now):
            news.reports.extend(reports)
        news.segments.extend(self._new_segments(self._last_look - LATE_SECONDS))
        self._last_look = now
        for events in self._followed_events().pages(now) if self._kinds else ():
            news.events.extend(events)
        self._news = News([], [], [], [])
        return news

    def _followed_events(self) -> Tail[Event]:
        if self._events is None:
            start = 0 if self._newest is None else self._table.event_before(self._newest)
            self._events = Tail(lambda after: self._table.events(after, self._kinds), start)
        return self._events

    def _new_trials(self) -> list[PlannedTrial]:
        known, newest = self.trials, next(reversed(self.trials), -1)
        rows = self._table.trials() if self._all else self._table.unreported_trials(newest)
        self._all = False
        gone = self.unreported.keys() - {row.number for row in rows}
        self.unreported = {row.number: row for row in rows if row.alive or not row.end_reported}
        # That Optuna knows the end of a trial is no news.
        known.update((number, replace(known[number], end_reported=True)) for number in gone)
        if lost := [number for number in gone if known[number].alive]:  # ended by another process
            rows = sorted(rows + self._table.trials(lost), key=attrgetter("number"))
        # Equal rows are mostly the same object, and a comparison of identity is fast.
        new = [row for row in rows if known.get(row.number) is not row]
        new = [row for row in new if known.get(row.number) != row]
        late = any(row.number < newest and row.number not in known for row in new)
        known.update((row.number, row) for row in new)
        if late:
            self.trials = dict(sorted(known.items()))
        return new

    def _new_segments(self, since: float) -> list[tuple[SegmentRow | None, SegmentRow]]:
        known = self.segments
        rows = [row for row in self._table.segments(since) if known.get(row[:2]) is not row]
        new = [(before, row) for row in rows if (before := known.get(row[:2])) != row]
        known.update((row[:2], row) for _, row in new)
        return new
