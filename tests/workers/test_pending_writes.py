"""What ranks said is written in the order that correctness needs, in turns, again if need be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.allocation.records import NewReport
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.worker import pending_writes as backlogs
from optuna_deadline.worker.pending_writes import PendingWrites
from optuna_deadline.worker.verdict import WentWarm


class Away(Exception):
    """The database is."""


class Database:
    """Remembers what was written, in what order; fails where it is told to.

    A call that fails may have been carried out, as one whose answer is lost.
    """

    def __init__(self, failures: Sequence[str | None] = ()) -> None:
        self.log: list[tuple[str, int]] = []
        self.calls = 0
        self._failures = iter(failures)

    def store(self, reports: Sequence[NewReport], checkpoints: Sequence[Checkpoint]) -> None:
        self._carry_out(
            sorted(
                [
                    *(("report", one.step) for one in reports),
                    *(("checkpoint", one.step) for one in checkpoints),
                ],
                key=lambda line: line[1],
            )
        )

    def copy(self, reports: Sequence[NewReport]) -> None:
        self._carry_out([("copy", one.step) for one in reports])

    def ask(self, place: int) -> None:
        self._carry_out([("ask", place)])

    def _carry_out(self, lines: list[tuple[str, int]]) -> None:
        self.calls += 1
        failure = next(self._failures, None)
        if failure != "before":
            self.log += [line for line in lines if line not in self.log]
        if failure:
            raise Away


def saved(step: int) -> Checkpoint:
    return Checkpoint(0, 1, step, None, Path(f"{step}"), 1, "x")


def add(backlog: PendingWrites, database: Database, kind: str, place: int) -> None:
    if kind == "report":
        backlog.add(NewReport(place, 0.5, 1.0))
    elif kind == "checkpoint":
        backlog.add(saved(place))
    else:
        backlog.add(lambda: database.ask(place))


@given(
    st.lists(st.lists(st.sampled_from(["report", "checkpoint", "ask"]), max_size=6), max_size=5),
    st.lists(st.sampled_from([None, "before", "after"]), max_size=8),
    st.booleans(),
)
def test_what_ranks_said_is_stored_in_its_order_whatever_fails(
    turns: list[list[str]], failures: list[str | None], hurried: bool
) -> None:
    backlog, database = PendingWrites(), Database(failures)
    until = -math.inf if hurried else math.inf
    sent: list[tuple[str, int]] = []
    waiting = iter(turns)
    while True:
        turn = next(waiting, None)
        for kind in turn or ():
            sent.append((kind, len(sent)))
            add(backlog, database, *sent[-1])
        if turn is None and not backlog:
            break
        try:
            backlog.write(database.store, database.copy, until)
        except Away:
            assert backlog
    copies = [place for kind, place in database.log if kind == "copy"]
    assert copies == [place for kind, place in sent if kind == "report"]
    written = [line for line in database.log if line[0] != "copy"]
    assert written == sent, "nothing is lost, is there twice, or overtakes another"


def test_what_has_piled_up_goes_together() -> None:
    backlog, database = PendingWrites(), Database()
    for step in range(100):
        backlog.add(NewReport(step, 0.5, 1.0))
        backlog.add(saved(step))
    assert backlog.write(database.store, database.copy, math.inf)
    assert database.calls == 2 and len(database.log) == 300 and not backlog
    assert not backlog.write(database.store, database.copy, math.inf)


def test_no_statement_grows_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "MAX_REPORTS", 3)
    backlog, database = PendingWrites(), Database(["before", None, "after"])
    for step in range(8):
        backlog.add(NewReport(step, 0.5, 1.0))
    for _ in range(2):
        with pytest.raises(Away):
            backlog.write(database.store, database.copy, math.inf)
    backlog.write(database.store, database.copy, math.inf)
    assert database.calls == 6 and database.log[:8] == [("report", step) for step in range(8)]


def test_a_turn_ends_when_its_time_is_up_and_the_rest_has_the_next() -> None:
    """However slowly each is answered: a rank's questions come one after the other."""
    backlog, database = PendingWrites(), Database()
    for place in range(3):
        add(backlog, database, "ask", place)
        add(backlog, database, "report", place)
    for turn in range(1, 4):
        written = backlog.write(database.store, database.copy, -math.inf)
        assert written == (turn > 1), "only a report needs a new plan"
        assert sum(kind == "ask" for kind, _ in database.log) == turn
    assert backlog, "a report was said after the last question"
    backlog.clear()
    assert not backlog and not backlog.write(database.store, database.copy, math.inf)


def test_the_end_comes_once_everything_before_it_is_written() -> None:
    backlog, database = PendingWrites(), Database(failures=["before"])
    add(backlog, database, "report", 1)
    backlog.add_end(WentWarm(0.5))
    assert backlog and backlog.end is None
    with pytest.raises(Away):
        backlog.write(database.store, database.copy, math.inf)
    assert backlog.end is None
    backlog.write(database.store, database.copy, math.inf)
    assert backlog.end == WentWarm(0.5)
    add(backlog, database, "report", 2)
    backlog.clear()  # another worker has the trial, and the ranks end
    assert backlog.end == WentWarm(0.5)
