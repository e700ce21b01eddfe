"""Updates a study's page in optuna-dashboard from the process of its elected planner.

Updates run in their own thread. After each one the thread pauses for twenty times as long as the
update computed, and an update writes at most some tens of kilobytes. The first error is logged;
errors do not affect the worker.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from optuna.study import Study

from optuna_deadline._garbage import collecting_later
from optuna_deadline._threads import PeriodicThread
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.records import SegmentRow
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.dashboard.attributes import DashboardAttributes
from optuna_deadline.dashboard.notes import columns, study_note, trial_note
from optuna_deadline.history.forecast import Forecast, forecast
from optuna_deadline.history.reader import HistoryReader
from optuna_deadline.history.records import History, TrialTimeline
from optuna_deadline.study.terms import Terms
from optuna_deadline.visualization._allocation import chart_allocation
from optuna_deadline.visualization._budget import chart_budget
from optuna_deadline.visualization._chart import Chart
from optuna_deadline.visualization._forecast import chart_forecast
from optuna_deadline.visualization._plotly import spec_of
from optuna_deadline.visualization._rungs import chart_rungs
from optuna_deadline.visualization._utilization import chart_utilization
from optuna_deadline.worker.database_errors import DATABASE_ERRORS, is_refusal

_logger = logging.getLogger("optuna_deadline")

FIRST = 10.0  #: seconds until the first update; shorter studies end before a viewer opens the page
LEAST = 5.0  #: seconds between two updates
_SHARE = 20.0  # an update is followed by a pause this many times as long
_CALM = 5.0  # seconds before the deadline in which no update starts
MOST_BYTES = 20_000  #: of a figure: Optuna reads all figures with the study's attributes
_TRIALS = (64, 32, 16, 8, 4, 2, 1)
_AT_ONCE = 100  # trials whose columns one transaction writes
NOTES = 64  #: the most trials with a note
_FINAL = 60.0  # seconds after its end from which nothing is added to a trial any more


class Publisher:
    """Publishes one study.

    Args:
        reader: Reads the study's history.
        attributes: Writes the attributes of the dashboard.
        rules: Returns whether this process has the elected planner.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        reader: HistoryReader,
        attributes: DashboardAttributes,
        rules: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._attributes = attributes
        self._rules = rules
        self._clock = clock
        self._next = clock() + FIRST
        self._passes = 0
        self._calm = math.inf  # when updates stop
        self._complained = False
        self._notes: dict[int, str] = {}
        self._columns: dict[int, dict[str, object]] = {}
        self._ticker = PeriodicThread("publisher", self.work)

    def start(self) -> None:
        """Start the thread."""
        self._ticker.start()

    def stop(self) -> None:
        """Start no further update."""
        self._ticker.stop(0.0)

    def finish(self, patience: float) -> None:
        """Publish the last state, unless the study just started.

        Args:
            patience: Seconds to wait; then the update continues in the background.
        """
        until = self._clock() + patience
        if not self._ticker.stop(patience) or (not self._passes and self._clock() < self._next):
            return
        last = threading.Thread(target=self._try, name="optuna-deadline-publisher", daemon=True)
        last.start()
        last.join(max(0.0, until - self._clock()))

    def work(self) -> float:
        """Update the dashboard if an update is due; return the seconds until the next one."""
        began = self._clock()
        if began >= self._next and not self._calm <= began <= self._calm + 2 * _CALM:
            computed = time.thread_time()
            self._try()
            computed = time.thread_time() - computed
            self._next = self._clock() + max(LEAST, _SHARE * computed)
        return max(0.5, self._next - self._clock())

    def _try(self) -> None:
        try:
            if self._rules():
                self.publish()
        except Exception as error:
            # The worker says that the database is away.
            away = isinstance(error, DATABASE_ERRORS) and not is_refusal(error)
            if not self._complained and not away:
                self._complained = True
                _logger.warning(
                    "optuna-dashboard cannot be updated (%s: %s); the study continues.",
                    type(error).__name__, str(error).partition("\n")[0],
                )  # fmt: skip

    @collecting_later()
    def publish(self) -> None:
        """Read the history; write what has changed."""
        history = self._reader.read()
        self._calm = self._clock() + history.time_left - _CALM
        shown = history.timelines
        notes, user = self._changes(history, shown)
        expected = forecast(history)
        note = study_note(history, shown, expected)
        self._attributes.write(figures(history, expected), {None: note}, {})
        ids = sorted(user.keys() | notes.keys())
        for place in range(0, len(ids), _AT_ONCE):
            some = ids[place : place + _AT_ONCE]
            self._attributes.write(
                {}, {i: notes[i] for i in some if i in notes},
                {i: user[i] for i in some if i in user},
            )  # fmt: skip
        self._notes = {i: note for i, note in (self._notes | notes).items() if note}
        self._columns |= user
        self._passes += 1

    def _changes(
        self, history: History, shown: list[TrialTimeline]
    ) -> tuple[dict[int, str], dict[int, dict[str, object]]]:
        """Notes and columns that differ from those last written, by Optuna's trial id."""
        ids = {planned.number: planned.trial_id for planned in history.trials}
        segments: dict[int, list[SegmentRow]] = defaultdict(list)
        for row in history.segments:
            segments[row.number].append(row)
        chosen = _worth_a_note(history, shown)
        if not self._passes:  # another process may have written others
            self._notes = dict.fromkeys(self._attributes.noted(), "?")
        kept = {ids[number] for number in chosen & ids.keys()}
        notes = dict.fromkeys(self._notes.keys() - kept, "")
        user: dict[int, dict[str, object]] = {}
        for life in shown:
            trial_id = ids.get(life.number)
            if trial_id is None:
                continue
            note = trial_note(history, life) if trial_id in kept else None
            if note is not None and self._notes.get(trial_id) != note:
                notes[trial_id] = note
            final = life.ended is not None and life.ended < history.now - _FINAL
            if final and trial_id in self._columns:
                self._columns[trial_id] = {}  # not compared any more
                continue
            found = columns(history, life, segments[life.number])
            if self._columns.get(trial_id) != found:
                user[trial_id] = found
        return notes, user


def _worth_a_note(history: History, shown: list[TrialTimeline]) -> set[int]:
    """The trials at which a reader will look: the best one, those that train, the newest changes.

    optuna-dashboard reads all notes for each page, in a time that grows with their square.
    """
    best = {one.number for one in history.improvements[-1:]}

    def key(life: TrialTimeline) -> tuple[bool, bool, float]:
        last = life.segments[-1] if life.segments else None
        changed = life.opened if last is None else last.start if last.end is None else last.end
        return life.number in best, life.slots > 0, max(changed, life.ended or 0.0)

    return {life.number for life in sorted(shown, key=key, reverse=True)[:NOTES]}


def make_publisher(
    database: Database,
    study: Study,
    table: AllocationTable,
    terms: Terms,
    rules: Callable[[], bool],
) -> Publisher | None:
    """The publisher of a study; None if it is not in the allocation table's database.

    Args:
        database: The table's database.
        study: The study.
        table: The allocation table.
        terms: The study's terms.
        rules: Returns whether this process has the elected planner.
    """
    attributes = DashboardAttributes.of(database, study)
    return (
        None if attributes is None else Publisher(HistoryReader(table, terms), attributes, rules)
    )


def figures(history: History, expected: Forecast, most: int = MOST_BYTES) -> dict[str, str]:
    """The JSON of all figures by id; see :func:`figures_within`."""
    makers: dict[str, Callable[[int], Chart]] = {
        "deadline-allocation": lambda n: chart_allocation(history, n, 8 * n),
        "deadline-forecast": lambda n: chart_forecast(history, n, expected),
        "deadline-budget": lambda n: chart_budget(history),
        "deadline-utilization": lambda n: chart_utilization(history, 4 * n),
        "deadline-rungs": lambda n: chart_rungs(history, n),
    }
    return figures_within(makers, most)


def figures_within(
    makers: Mapping[str, Callable[[int], Chart]], most: int = MOST_BYTES
) -> dict[str, str]:
    """The JSON of figures by id; figures that are too large show the newest trials only."""
    found = {}
    for name, make in makers.items():
        for trials in _TRIALS:
            text = json.dumps(spec_of(make(trials)), separators=(",", ":"), allow_nan=False)
            if len(text) <= most:
                found[name] = text
                break
    return found
