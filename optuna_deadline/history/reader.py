"""Reads a study's history from the table, again and again what is new alone."""

from __future__ import annotations

from optuna.study import Study

from optuna_deadline.allocation.records import Event, ReportRow, SegmentRow
from optuna_deadline.allocation.sql.database.engine import autocommit, open_table
from optuna_deadline.allocation.sql.reads import pools_of
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.allocation.tail import LATE_SECONDS, Tail
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.plain import plain_history
from optuna_deadline.history.records import History
from optuna_deadline.history.spells import KINDS
from optuna_deadline.study import terms as study_terms
from optuna_deadline.study.terms import Terms

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
        self._new_events = Tail(lambda after: table.events(after, KINDS))
        self._new_pool_events = Tail(lambda after: table.pool_events(after, _POOL_KINDS))
        self._new_reports = Tail(table.reports)
        self._last_look = 0.0

    def read(self) -> History:
        """The history until now."""
        table, terms = self._table, self._terms
        orders = table.orders("")
        now = orders.now
        self._events.update((row.id, row) for row in self._new_events.read(now))
        self._pool_events.update((row.id, row) for row in self._new_pool_events.read(now))
        self._reports.update((row.id, row) for row in self._new_reports.read(now))
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
