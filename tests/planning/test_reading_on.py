"""Who reads a study on sees what a new reader sees, and reads only what is new."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.following import Following
from optuna_deadline.allocation.records import Assignment, NewReport, Orders
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.history.reader import HistoryReader
from optuna_deadline.live import watcher as watching
from optuna_deadline.live.view import View
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.planning import planner
from optuna_deadline.planning.reading import Reading
from optuna_deadline.planning.snapshot import SnapshotReader
from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import Cluster, Faults, Simulation, generate
from optuna_deadline.study.terms import Terms

TERMS = Terms(1, "study", "maximize", 0.0, 99.0, 99.0, "fifo", {}, 8.0)


def _facts(view: View) -> dict[str, Any]:
    """A view without what was read between two looks, and with rounded sums."""
    return vars(dataclasses.replace(view, decisions=(), slot_hours=round(view.slot_hours, 9)))


def test_a_view_and_a_history_that_are_read_on_equal_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers: list[tuple[StudyWatcher, HistoryReader]] = []
    states = set[str]()

    class Watched(SnapshotReader):
        def read(self, orders: Orders) -> Reading:
            table = self._table
            if not readers:
                readers.append((StudyWatcher(table, TERMS), HistoryReader(table, TERMS)))
            watcher, history = readers[0]
            view = watcher.view()
            assert _facts(view) == _facts(StudyWatcher(table, TERMS).view())
            assert history.read() == HistoryReader(table, TERMS).read()
            states.update(row.state for row in view.rows)
            return super().read(orders)

    monkeypatch.setattr(planner, "SnapshotReader", Watched)
    faults = Faults(crash_every=300.0, host_every=600.0, straggler_share=0.2)
    cluster = Cluster(slots=2, hosts=2, faults=faults, ttl=10.0, grace=5.0)
    tuned = generate("diverging", 1, configurations=32, steps=20)
    chosen = make_policy("hypersched", {"max_resource": 20})
    Simulation(chosen, tuned, cluster, deadline=1.5 * tuned.full_seconds, seed=1).run()
    assert states >= {"running", "paused", "pruned", "complete"}


def _with_trials(numbers: range, clock: list[float]) -> tuple[MemoryTable, int]:
    table = MemoryTable("pool", 1, now=lambda: clock[0], started=0.0, deadline=100.0)
    table.register("w", "host", 1, [], 2)
    term = table.elect_planner("w")
    assert term is not None
    for number in numbers:
        table.open_trial("w", term, number, number + 1)
    return table, term


def _end(table: MemoryTable, term: int, numbers: Iterable[int]) -> None:
    table.retire("w", term, dict.fromkeys(numbers, "is over"))
    table.mark_ends_reported(*numbers)


def test_a_second_reading_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    table, term = _with_trials(range(200), clock)
    _end(table, term, range(199))
    table.write_plan("w", term, [Assignment(199, "run", "w", 1, "its turn")])
    grant = table.acquire("w", 199, [table.slots()[0].id])
    assert grant is not None
    following = Following(table, ("plan", "retired"))
    clock[0] = 25.0
    assert len(following.read(25.0).trials) == 200
    counts: list[int] = []
    read = Transaction.rows

    def counted(tx: Transaction, text: str, **params: Any) -> list[Any]:
        found = read(tx, text, **params)
        counts.append(len(found))
        return found

    monkeypatch.setattr(Transaction, "rows", counted)
    table.add_reports("w", grant, [NewReport(1, 0.5, 1.0)])
    counts.clear()
    news = following.read(25.0)
    assert [row.step for row in news.reports] == [1]
    assert news.trials == [] and news.events == []
    assert sum(counts) <= 5, "one live trial, its segment, its report, what may still be late"


@pytest.mark.parametrize("read", ["reports", "segments", "events", "roster"])
def test_what_was_read_before_a_database_error_is_not_lost(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, term = _with_trials(range(2), [0.0])
    orders, answer, cut = table.orders("w"), getattr(table, read), [False]

    def asked(*args: Any) -> Any:
        if cut[0]:
            raise sa.exc.OperationalError("", {}, Exception("cut"))
        return answer(*args)

    monkeypatch.setattr(table, read, asked)
    following, snapshot = Following(table, ("open",)), SnapshotReader(table, "maximize")
    table.write_plan("w", term, [Assignment(0, "run", "w", 1, "its turn")])
    grant = table.acquire("w", 0, [table.slots()[0].id])
    assert grant is not None
    snapshot.read(orders)
    table.add_reports("w", grant, [NewReport(1, 0.5, 1.0)])
    table.retire("w", term, {1: "is over"})
    cut[0] = True
    for reading in (lambda: following.read(0.0), lambda: snapshot.read(orders)):
        with suppress(sa.exc.OperationalError):
            reading()
    cut[0] = False
    if read != "roster":
        news = following.read(0.0)
        assert [row.number for row in news.trials] == [0, 1]
        assert [row.step for row in news.reports] == [1]
        assert len(news.segments) == 1 and len(news.events) == 2
    seen = snapshot.read(orders).snapshot.trials
    assert [(view.state, len(view.reports)) for view in seen] == [("running", 1), ("retired", 0)]


def test_a_trial_that_begins_and_ends_between_two_readings_is_seen() -> None:
    """Also one with a number below the newest, and an end that another process has stored."""
    table, term = _with_trials(range(1, 3), [0.0])
    following = Following(table)
    following.read(0.0)
    for number in (0, 3):
        table.open_trial("w", term, number, 10 + number)
    _end(table, term, (1, 3))
    assert [row.number for row in following.read(0.0).trials] == [0, 1, 3]
    assert list(following.trials.values()) == table.trials()
    assert list(following.unreported) == [0, 2]


def test_a_short_time_without_new_trials_and_the_pause_of_an_ended_trial_are_not_told() -> None:
    clock = [0.0]
    table, term = _with_trials(range(2), clock)
    watcher = StudyWatcher(table, TERMS)

    told: list[str] = []

    def decisions() -> list[str]:
        """What is new stands at the end."""
        before = list(told)
        told[:] = [decision.words for decision in watcher.view().decisions]
        assert told[: len(before)] == before
        return list(told)

    for seconds in (1.0, 0.5, 2.0, 0.5):
        clock[0] += seconds
        table.set_gate("w", term, seconds < 1.0)
        assert decisions() == []
    clock[0] += 1.0
    table.set_gate("w", term, False)
    clock[0] += 3.0
    table.write_plan("w", term, [Assignment(1, "pause", None, 0, "others go first")])
    assert decisions() == ["trial 1 pauses: others go first"]
    clock[0] += 3.0
    [_, closed] = decisions()
    assert closed.startswith("no new trial starts for now")
    table.set_gate("w", term, True)
    assert decisions()[2:] == ["new trials start again"]
    table.write_plan("w", term, [Assignment(0, "pause", None, 0, "others go first")])
    table.retire("w", term, {0: "is over"})
    assert len(decisions()) == 3


def test_a_first_look_reads_the_newest_events_and_knows_the_sizes_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    table, term = _with_trials(range(3), clock)
    slots = [slot.id for slot in table.slots()]
    table.write_plan("w", term, [Assignment(0, "run", "w", 1, "starts: its turn")])
    grant = table.acquire("w", 0, slots[:1])
    assert grant is not None
    table.add_reports("w", grant, [NewReport(1, 0.5, 1.0)])
    clock[0] = 50.0
    for reason in map(str, range(20)):
        table.write_plan("w", term, [Assignment(1, "pause", None, 0, reason)])
    table.write_plan("w", term, [Assignment(0, "run", "w", 2, "it leads")])
    monkeypatch.setattr(watching, "_BACK", 10)
    told = [decision.words for decision in StudyWatcher(table, TERMS).view().decisions]
    assert told[-1] == "trial 0 goes from 1 to 2 slots at step 1: it leads"
    assert len(told) == 10 and "starts" not in told[0]


def test_a_pause_tells_the_rank_of_which_diverged_trials_are_the_last() -> None:
    table, term = _with_trials(range(2), [0.0])
    watcher = StudyWatcher(table, TERMS)
    names = [slot.id for slot in table.slots()]
    for number, value in enumerate((float("nan"), 0.5)):
        table.write_plan("w", term, [Assignment(number, "run", "w", 1, "starts: its turn")])
        grant = table.acquire("w", number, [names[number]])
        assert grant is not None
        table.add_reports("w", grant, [NewReport(1, value, 1.0)])
    why = "not among the best of its rung"
    table.write_plan("w", term, [Assignment(n, "pause", None, 0, why) for n in range(2)])
    told = [decision.words for decision in watcher.view().decisions]
    assert told[-2:] == [
        "trial 0 pauses at step 1: rank 2 of 2",
        "trial 1 pauses at step 1: rank 1 of 2",
    ]
