"""Every row of a table that grows is read once, also one that is committed late."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.allocation import tail
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.database.schema import checkpoint, event, report, study
from optuna_deadline.allocation.records import Assignment, Worker
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.tail import LATE_SECONDS, Tail
from optuna_deadline.dashboard.pools import PoolStates
from optuna_deadline.history.reader import HistoryReader
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.planning.placement.data_locality import CheckpointLocality
from optuna_deadline.planning.snapshot import SnapshotReader
from optuna_deadline.study import agreement
from optuna_deadline.study.terms import Terms


class Row(NamedTuple):
    """A row of a made-up table."""

    id: int
    at: float


@dataclass
class Committed:
    """A table whose rows become visible in any order."""

    rows: list[Row] = field(default_factory=list)
    read: int = 0

    def after(self, row_id: int) -> list[Row]:
        """A page of it."""
        found = sorted(row for row in self.rows if row.id > row_id)[: tail.PAGE]
        self.read += len(found)
        return found


@given(st.permutations(range(1, 40)), st.integers(1, 10), st.integers(3, 9))
def test_each_row_is_given_once_in_whatever_order_rows_are_committed(
    order: list[int], at_once: int, page: int
) -> None:
    table = Committed()
    reader, given_ = Tail(table.after), []
    before, tail.PAGE = tail.PAGE, page
    try:
        for begin in range(0, len(order), at_once):
            table.rows += [Row(i, 1.0) for i in order[begin : begin + at_once]]
            given_ += [row.id for row in reader.read(1.0)]
    finally:
        tail.PAGE = before
    assert sorted(given_) == sorted(order)
    assert reader.solid == max(order), "none is missing, so none is read again"


def test_a_row_is_given_though_a_thousand_of_others_lie_between() -> None:
    table = Committed([Row(1, 7.0), Row(1500, 7.0)])
    reader = Tail(table.after)
    assert [row.id for row in reader.read(8.0)] == [1, 1500]
    assert reader.solid == 1, "row 2 may be another study's, or on its way"
    table.rows.append(Row(2, 7.0))
    assert [row.id for row in reader.read(9.0)] == [2]
    assert reader.read(7.0 + 2 * LATE_SECONDS + 1.0) == []
    assert reader.solid == 1500


def test_a_lower_id_may_belong_to_a_transaction_that_ends_much_later() -> None:
    """Numbered at the end of the one's time, and at the beginning of the other's."""
    slow, later = Row(5, 0.0), Row(4, LATE_SECONDS - 0.1)
    table = Committed([slow])
    reader = Tail(table.after)
    reader.read(LATE_SECONDS)
    assert reader.read(LATE_SECONDS + 1.0) == []
    table.rows.append(later)
    assert reader.read(2 * LATE_SECONDS - 0.2) == [later]


def test_what_is_old_is_not_read_again() -> None:
    table = Committed([Row(2 * i, float(i)) for i in range(1, 1001)])
    reader = Tail(table.after)
    reader.read(1000.0)
    table.read = 0
    assert reader.read(1000.0) == []
    assert table.read <= 2 * LATE_SECONDS + 1
    assert Tail(table.after, start=1990).read(1000.0) == [
        Row(2 * i, float(i)) for i in range(996, 1001)
    ]


@dataclass
class Late:
    """A study whose second row of each kind is committed after its newest one."""

    table: AllocationTable
    terms: Terms

    def insert(self, of: sa.Table, row_id: int, **columns: Any) -> None:
        """A row as a worker's transaction writes it."""
        values = {"study_id": self.terms.study_id, "at": self.table.now(), **columns}
        with self.table.database.engine.begin() as connection:
            connection.execute(sa.insert(of).values(id=row_id, **values))

    def report(self, row_id: int, number: int) -> None:
        """A report of a trial."""
        self.insert(
            report, row_id, number=number, step=1, value=0.5, fence=1, slots=1, trained=1.0
        )

    def gate(self, row_id: int, is_open: bool) -> None:
        """An event."""
        self.insert(event, row_id, pool="pool", kind="gate", detail={"open": is_open})

    def failure(self, row_id: int, number: int) -> None:
        """An event of a trial."""
        self.insert(event, row_id, pool="pool", kind="failed", number=number)

    def save(self, row_id: int, number: int) -> None:
        """A checkpoint."""
        self.insert(
            checkpoint, row_id, number=number, fence=1, step=1, path=str(Path("x")), size=1,
            checksum="x",
        )  # fmt: skip


@pytest.fixture
def late(sqlite_url: str) -> Late:
    """Two trials on a table."""
    created = optuna.create_study(storage=sqlite_url, study_name="study")
    database = open_table(created)
    terms = agreement.fix(database, created, "1h")
    table = AllocationTable(database, "pool", terms.study_id)
    table.register("w", "host", 1, [], 2)
    term = table.elect_planner("w")
    assert term is not None
    for number in (0, 1):
        table.open_trial("w", term, number, number + 1)
    table.write_plan("w", term, [Assignment(0, "pause", None, 0, "waits")])
    return Late(table, terms)


def test_a_view_shows_what_is_committed_late(late: Late) -> None:
    watcher = StudyWatcher(late.table, late.terms)
    late.report(9_001, 0)
    late.failure(19_001, 0)
    with late.table.database.engine.begin() as connection:
        connection.execute(sa.update(study).values(gate_closed=0.0))
    assert [row.step for row in watcher.view().rows] == [1, None]
    late.report(9_000 - 1_000, 1)
    late.failure(19_001 - 1_000, 1)
    view = watcher.view()
    assert [row.step for row in view.rows] == [1, 1]
    assert [decision.words for decision in view.decisions[-2:]] == [
        "trial 0 failed",
        "trial 1 failed",
    ]
    assert not view.gate_open


def test_the_live_page_shows_what_is_committed_late(late: Late) -> None:
    pages = PoolStates(late.table.database, clock=iter(range(99)).__next__)
    late.report(9_001, 0)
    late.gate(19_001, False)
    [before] = pages.state()["pools"]
    late.report(9_000 - 1_000, 1)
    late.gate(19_001 - 1_000, True)
    [pool] = pages.state()["pools"]
    assert (before["studies"][0]["reports"], pool["studies"][0]["reports"]) == (1, 2)
    assert len(pool["events"]) == len(before["events"]) + 1


def test_a_planner_and_a_history_know_what_is_committed_late(late: Late) -> None:
    reader = SnapshotReader(late.table, "minimize")
    history = HistoryReader(late.table, late.terms)
    late.report(9_001, 0)
    reader.read(late.table.orders(""))
    history.read()
    late.report(9_000 - 1_000, 1)
    seen = reader.read(late.table.orders("")).snapshot.trials
    assert [len(trial.reports) for trial in seen] == [1, 1]
    assert [row.number for row in history.read().reports] == [1, 0]


def test_a_trial_whose_checkpoint_is_committed_late_is_bound_to_its_host(late: Late) -> None:
    homes = CheckpointLocality(late.table)
    elsewhere = Worker("x", "pool", 1, "there", 1, "live", 0.0, store="mark:/there")
    here = Worker("w", "pool", 1, "host", 1, "live", 0.0, store="mark:/here")
    trials = {line.number: line for line in late.table.trials()}
    late.save(9_001, 0)
    homes.bindings([here, elsewhere], trials, late.table.now())
    late.save(9_000 - 1_000, 1)
    homes.bindings([here, elsewhere], trials, late.table.now())
    assert set(homes._newest) == {0, 1}
