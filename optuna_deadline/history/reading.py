"""Reads a study's history from the table, again and again what is new alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optuna.study import Study

from optuna_deadline import terms as study_terms
from optuna_deadline.allocation.engine import autocommit, open_table
from optuna_deadline.allocation.reads import pools_of
from optuna_deadline.allocation.records import Event, ReportRow, SegmentRow
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.plain import plain_history
from optuna_deadline.history.records import History
from optuna_deadline.history.spells import KINDS
from optuna_deadline.planning.late import LATE_SECONDS, solid
from optuna_deadline.terms import Terms

_POOL_KINDS = ("register", "lend", "leave")


class HistoryReader:
    """Keeps a study's history up to date; it writes nothing.

    Args:
        table: The allocation table.
        terms: The study's terms.
    """

    def __init__(self, table: AllocationStore, terms: Terms) -> None:
        self._table = table
        self._terms = terms
        self._events: dict[int, Event] = {}
        self._pool_events: dict[int, Event] = {}
        self._reports: dict[int, ReportRow] = {}
        self._segments: dict[tuple[int, int], SegmentRow] = {}
        self._solid = self._solid_pool = self._solid_reports = 0  # ids below which all were seen
        self._last_look = 0.0

    def read(self) -> History:
        """The history until now."""
        table, terms = self._table, self._terms
        orders = table.orders("")
        now = orders.now
        self._solid = _take(self._events, table.events, KINDS, now, self._solid)
        self._solid_pool = _take(
            self._pool_events, table.pool_events, _POOL_KINDS, now, self._solid_pool
        )
        reports = table.reports(self._solid_reports)
        self._reports.update((row.id, row) for row in reports)
        seen = [(row.id, row.at) for row in reports]
        self._solid_reports = solid(seen, now, self._solid_reports)
        for segment in table.segments(self._last_look - LATE_SECONDS):
            self._segments[segment.number, segment.fence] = segment
        self._last_look = now
        events = [self._events[row_id] for row_id in sorted(self._events)]
        closed = [event.at for event in events if event.kind == "settle"]
        return History(
            name=terms.name,
            study_id=terms.study_id,
            maximize=terms.maximize,
            started=terms.started,
            deadline=orders.deadline,
            now=now,
            settled=closed[-1] if orders.settled and closed else None,
            trials=tuple(table.trials()),
            segments=tuple(sorted(self._segments.values(), key=lambda s: (s.granted, s.number))),
            reports=tuple(self._reports[row_id] for row_id in sorted(self._reports)),
            events=tuple(events),
            pool_events=tuple(self._pool_events[row_id] for row_id in sorted(self._pool_events)),
            slots=tuple(table.slots()),
            workers=tuple(table.workers()),
            budget=terms.budget,
            policy=terms.policy,
            parameters=terms.parameters,
        )


def _take(
    known: dict[int, Event],
    read: Callable[[int, Sequence[str]], list[Event]],
    kinds: Sequence[str],
    now: float,
    before: int,
) -> int:
    """Take in what has come; returns the id up to which nothing more can."""
    after, seen = before, []
    while page := read(after, kinds):
        after = page[-1].id
        known.update((event.id, event) for event in page)
        seen += [(event.id, event.at) for event in page]
    return solid(seen, now, before)


def read_history(study: Study, table: str | None = None) -> History:
    """The history of a study; see :func:`table_of` for the arguments and errors.

    Of a study that only ``study.optimize`` trains it is read from Optuna's trials.
    """
    found, terms = table_of(study, table)
    history = HistoryReader(found, terms).read()
    if history.trials or history.workers:
        return history
    trials = study.get_trials(deepcopy=False)
    return plain_history(terms, trials) if trials else history


def table_of(study: Study, table: str | None = None) -> tuple[AllocationTable, Terms]:
    """A study's table, in the pool that it joined last, and the terms of the study.

    Args:
        study: A study that has a deadline.
        table: The database of the allocation table, where the study's storage is not SQL.

    Raises:
        DeadlineError: The study has no deadline.
        UnsupportedStorage: The study's storage is not SQL, and no ``table`` is given.
    """
    engine = open_table(study, table)
    found = study_terms.read(engine, study)
    if found is None:
        raise DeadlineError(
            f"The study {study.study_name!r} has no deadline, and so there is nothing to show; "
            f"{study_terms.fixing(study)}."
        )
    with autocommit(engine) as connection:
        pools = pools_of(connection, found.study_id)
    pool = pools[0] if pools else study.study_name
    return AllocationTable(engine, pool, found.study_id), found
