"""Reads a study's history from the table incrementally, or from Optuna's trials.

A study that only ``study.optimize`` trains has no slots, and Optuna stores no time of a report:
the reports of a trial are assumed to be evenly spaced by their steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline._garbage import collecting_later
from optuna_deadline._optuna import id_of_trial
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.following import Following
from optuna_deadline.allocation.records import Event, PlannedTrial, ReportRow, SegmentRow
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.tail import Tail
from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.reporting import step_before_all
from optuna_deadline.history.records import EVENT_KINDS, History
from optuna_deadline.study import agreement
from optuna_deadline.study import terms as study_terms
from optuna_deadline.study.best import PRUNED_BECAUSE
from optuna_deadline.study.terms import Terms

#: The policy of a study without workers: the rule of its pruner.
_PLAIN = "pruner"
_STATES = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "retired",
    TrialState.FAIL: "failed",
}
_SOMEBODY = "study.optimize"


def plain_history(terms: Terms, trials: Sequence[FrozenTrial]) -> History:
    """The history of a study without an allocation table's rows.

    Args:
        terms: The study's, as read now.
        trials: All trials of the study; those that wait to be started are left out.
    """
    begun = [trial for trial in trials if trial.state in _STATES and trial.datetime_start]
    shift = -step_before_all(trial.intermediate_values for trial in begun)
    spans = {trial.number: _span(trial, terms) for trial in begun}
    running = any(trial.state is TrialState.RUNNING for trial in begun)
    over = not running and terms.read >= terms.deadline
    ends = [end for _, end in spans.values()]
    reports = [row for trial in begun for row in _reports(trial, spans[trial.number], shift)]
    reports.sort(key=lambda row: (row.at, row.number, row.step))
    return History(
        name=terms.name,
        study_id=terms.study_id,
        direction=terms.direction,
        started=terms.started,
        deadline=terms.deadline,
        now=terms.read,
        settled=max(ends) if over and ends else None,
        trials=tuple(_line(trial, spans[trial.number], terms) for trial in begun),
        segments=tuple(_segment(trial, spans[trial.number], shift) for trial in begun),
        reports=tuple(row._replace(id=place) for place, row in enumerate(reports, 1)),
        events=tuple(_events(begun, spans, terms)),
        policy=_PLAIN,
        parameters={**terms.parameters, "min_resource": 1, "reduction_factor": 2},
        plain=True,
    )


def _span(trial: FrozenTrial, terms: Terms) -> tuple[float, float]:
    """The start and end of a trial, or now; limited to the study's span, as clocks may differ."""
    begin = _instant(trial.datetime_start, terms)
    end = (
        terms.read if trial.datetime_complete is None else _instant(trial.datetime_complete, terms)
    )
    return begin, max(begin, end)


def _instant(moment: datetime | None, terms: Terms) -> float:
    assert moment is not None
    return min(max(moment.timestamp(), terms.started), terms.read)


def _reports(trial: FrozenTrial, span: tuple[float, float], shift: int) -> Iterator[ReportRow]:
    begin, end = span
    last = max(trial.intermediate_values, default=0) + shift
    for step, value in sorted(trial.intermediate_values.items()):
        part = (step + shift) / last if last else 1.0
        trained = part * (end - begin)
        yield ReportRow(0, trial.number, step, value, 1, trained, begin + trained)


def _line(trial: FrozenTrial, span: tuple[float, float], terms: Terms) -> PlannedTrial:
    state = _STATES[trial.state]
    trains = state == "running"
    value = trial.value if state == "complete" and trial.values else None
    return PlannedTrial(
        number=trial.number,
        trial_id=id_of_trial(trial),
        state=state,
        fence=1,
        owner=_SOMEBODY if trains else None,
        mode="run" if trains else "stop",
        worker=_SOMEBODY if trains else None,
        slots=1 if trains else 0,
        reason="",
        since=span[0] if trains else span[1],
        horizon=terms.parameters.get("max_resource"),
        value=value,
        end_reported=not trains,
        failures=0,
    )


def _segment(trial: FrozenTrial, span: tuple[float, float], shift: int) -> SegmentRow:
    begin, end = span
    done = max(trial.intermediate_values, default=-shift) + shift
    finished = trial.state is not TrialState.RUNNING
    return SegmentRow(
        trial.number, 1, 1, begin, end if finished else None, None, None, None,
        0.0, float(done), end - begin if done else None,
    )  # fmt: skip


def _events(
    trials: Sequence[FrozenTrial], spans: dict[int, tuple[float, float]], terms: Terms
) -> list[Event]:
    entries: list[tuple[float, str, int | None, dict[str, object]]] = []
    for trial in trials:
        begin, end = spans[trial.number]
        entries.append((begin, "open", trial.number, {}))
        entries.append((math.nextafter(begin, math.inf), "start", trial.number, {}))
        if trial.state is not TrialState.RUNNING:
            state, at = _STATES[trial.state], max(end, math.nextafter(begin, math.inf))
            why = trial.user_attrs.get(PRUNED_BECAUSE) if state == "retired" else None
            entries.append((at, state, trial.number, {} if why is None else {"reason": why}))
    entries.sort(key=lambda one: one[0])
    return [
        Event(place, at, kind, number, None, 1 if number is not None else None, None, None, detail,
              terms.study_id)
        for place, (at, kind, number, detail) in enumerate(entries, 1)
    ]  # fmt: skip


_POOL_KINDS = ("register", "lend", "leave")


class HistoryReader:
    """Keeps a study's history up to date; it writes nothing.

    Args:
        table: The allocation table.
        terms: The study's terms.
    """

    def __init__(self, table: AllocationTable, terms: Terms) -> None:
        self._table = table
        self._terms = terms
        self._following = Following(table, EVENT_KINDS)
        self._new_pool_events = Tail(lambda after: table.pool_events(after, _POOL_KINDS))
        self._events: dict[int, Event] = {}
        self._pool_events: dict[int, Event] = {}
        self._reports: dict[int, ReportRow] = {}

    @collecting_later()
    def read(self) -> History:
        """The history until now."""
        table, terms = self._table, self._terms
        table.follow_study()
        orders = table.orders("")
        now = orders.now
        news = self._following.read(now)
        self._events.update((row.id, row) for row in news.events)
        self._reports.update((row.id, row) for row in news.reports)
        self._pool_events.update((row.id, row) for row in self._new_pool_events.read(now))
        segments = self._following.segments.values()
        events = [self._events[row_id] for row_id in sorted(self._events)]
        closed = [event.at for event in events if event.kind == "settle"]
        return History(
            name=terms.name,
            study_id=terms.study_id,
            direction=terms.direction,
            started=orders.started,
            deadline=orders.deadline,
            now=now,
            settled=closed[-1] if orders.settled and closed else None,
            trials=tuple(self._following.trials.values()),
            segments=tuple(sorted(segments, key=lambda row: (row.granted, row.number))),
            reports=tuple(self._reports[row_id] for row_id in sorted(self._reports)),
            events=tuple(events),
            pool_events=tuple(self._pool_events[row_id] for row_id in sorted(self._pool_events)),
            slots=tuple(table.slots()),
            workers=tuple(table.workers()),
            budget=terms.budget,
            policy=terms.policy or _PLAIN,
            parameters=terms.parameters,
        )


def read_history(study: Study, storage: str | None = None) -> History:
    """The history of a study; see :func:`table_of` for the arguments and errors.

    For a study that only ``study.optimize`` trains, it is read from Optuna's trials.
    """
    found, terms = table_of(study, storage)
    history = HistoryReader(found, terms).read()
    if history.trials or history.workers:
        return history
    trials = study.get_trials(deepcopy=False)
    return plain_history(terms, trials) if trials else history


def table_of(study: Study, storage: str | None = None) -> tuple[AllocationTable, Terms]:
    """A study's table, in the pool that it joined last, and the terms of the study.

    Args:
        study: A study that has a deadline.
        storage: The database of the allocation table, if the study's storage is not SQL.

    Raises:
        DeadlineError: The study has no deadline.
        UnsupportedStorage: The study's storage is not SQL, and no ``storage`` is given.
    """
    database = open_table(study, storage)
    found = agreement.read(database, study)
    if found is None:
        raise DeadlineError(
            f"The study {study.study_name!r} has no deadline, so there is nothing to show; "
            f"{study_terms.fixing(study)}."
        )
    opened = AllocationTable(database, study.study_name, found.study_id)
    opened.follow_study()
    return opened, found
