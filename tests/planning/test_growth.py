"""What a tick costs does not grow with what a study has behind it: rows are counted, not time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.trial import TrialState

from optuna_deadline.allocation.records import Assignment, NewReport, PlannedTrial, ReportRow
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.forecasting.throughput import PRIOR_STOP, closing_seconds
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.policies.api import Order, Pause, Plan, Retire, Snapshot

DEADLINE = 1e6


class CountedTable(MemoryTable):
    """Counts the reports that are read of all trials, and the transactions that end trials."""

    read = written = 0

    def conclude(self, *args: Any, **kwargs: Any) -> bool:
        self.written += 1
        return super().conclude(*args, **kwargs)

    def retire(self, worker_id: str, term: int, reasons: Mapping[int, str]) -> int:
        before = self.written
        ended = super().retire(worker_id, term, reasons)
        self.written = before + 1
        return ended

    def mark_ends_reported(self, *numbers: int) -> None:
        self.written += 1
        super().mark_ends_reported(*numbers)

    def reports(self, after: int = 0, number: int | None = None) -> list[ReportRow]:
        found = super().reports(after, number)
        self.read += len(found) if number is None else 0
        return found


@dataclass
class GivesUp:
    """Gives some trials up and lets the others wait; newcomers come in for ever."""

    numbers: Collection[int] = ()

    def plan(self, snapshot: Snapshot) -> Plan:
        orders: dict[int, Order] = {
            trial.number: Retire("worse") if trial.number in self.numbers else Pause("waits")
            for trial in snapshot.trials
            if trial.alive
        }
        return Plan(orders, gate_open=True)


@dataclass
class Begun:
    """A study whose trials have all reported and wait."""

    trials: int
    steps: int
    time: float = 1000.0
    policy: GivesUp = field(default_factory=GivesUp)
    trials_of: type[OptunaTrials] = OptunaTrials
    study: optuna.Study = field(default_factory=lambda: optuna.create_study(direction="maximize"))

    def __post_init__(self) -> None:
        self.table = CountedTable(now=lambda: self.time, deadline=DEADLINE)
        [self.slot] = [slot.id for slot in self.table.register("me", "host", 1, [], 1)]
        self.planner = Planner(
            self.trials_of(self.study), self.table, self.policy, direction="maximize",
            worker_id="me", clock=lambda: self.time,
        )  # fmt: skip
        term = self.planner.try_elect()
        assert term is not None
        self.term = term
        for number in range(self.trials):
            trial = self.study.ask()
            self.table.open_trial("me", term, number, trial._trial_id)
            self.train(number)
            for step in range(self.steps):
                self.table.add_reports("me", self.grant, [NewReport(step, float(number), step)])
            self.table.release("me", self.grant, "paused", ended="pause")
            self.table.write_plan("me", term, [Assignment(number, "pause", None, 0, "waits")])

    def train(self, number: int) -> None:
        """Give a trial the only slot."""
        self.table.write_plan("me", self.term, [Assignment(number, "run", "me", 1, "test")])
        grant = self.table.acquire("me", number, [self.slot])
        assert grant is not None
        self.grant = grant

    def line(self, number: int) -> PlannedTrial:
        """A trial's row."""
        return self.table.trials()[number]


def test_trials_are_given_up_without_a_report_being_read_again() -> None:
    begun = Begun(trials=10, steps=5)
    begun.planner.tick()
    assert begun.table.read == 50
    begun.policy.numbers = range(10)
    begun.planner.tick()
    begun.planner.tick()
    assert [begun.line(number).state for number in range(10)] == ["retired"] * 9 + ["paused"]
    assert begun.table.read == 50


def test_a_study_ends_without_a_report_being_read_again() -> None:
    begun = Begun(trials=10, steps=5)
    begun.planner.tick()
    begun.time = DEADLINE - 1.0
    begun.table.renew("me", [])
    begun.planner.tick()
    assert begun.table.orders("me").settled and begun.table.read == 50
    states = [trial.state for trial in begun.study.trials]
    assert states == [TrialState.PRUNED] * 9 + [TrialState.COMPLETE]
    assert begun.study.best_value == 9.0


def test_who_waits_is_given_up_while_the_last_trial_still_leaves() -> None:
    begun = Begun(trials=10, steps=5)
    begun.train(3)
    begun.planner.tick()
    begun.time = DEADLINE - 1.0
    begun.table.renew("me", begun.grant.slots)
    begun.planner.tick()
    states = [begun.line(number).state for number in range(10)]
    assert states == ["retired"] * 3 + ["running"] + ["retired"] * 5 + ["paused"]
    assert not begun.table.orders("me").settled
    assert sum(trial.state == TrialState.PRUNED for trial in begun.study.trials) == 8


def test_as_many_wait_as_can_be_told_their_end_in_time() -> None:
    """Each end takes a second here, and the worst trials go first."""

    class Slow(OptunaTrials):
        def end(self, line: PlannedTrial, reports: Callable[[], list[ReportRow]]) -> None:
            begun.time += 1.0
            super().end(line, reports)

    begun = Begun(trials=10, steps=5, trials_of=Slow)
    begun.policy.numbers = [0]
    begun.planner.tick()
    begun.planner.tick()  # now it is known how long an end takes
    begun.time = DEADLINE - closing_seconds(PRIOR_STOP) - 20.0
    left: list[list[int]] = []
    while not begun.table.orders("me").settled:
        begun.table.renew("me", [])
        begun.planner.tick()
        begun.time += 0.5
        alive = [number for number in range(10) if begun.line(number).alive]
        if not left or left[-1] != alive:
            left.append(alive)
    assert begun.time - 0.5 <= DEADLINE
    assert left[0] == list(range(1, 10)), "there is time enough"
    assert len(left) > 3 and all(alive == list(range(alive[0], 10)) for alive in left[:-1])
    assert begun.study.best_value == 9.0


def test_many_are_given_up_in_a_few_transactions() -> None:
    begun = Begun(trials=100, steps=1)
    begun.planner.tick()
    begun.policy.numbers = range(99)
    begun.table.written = 0
    begun.planner.tick()
    begun.planner.tick()
    assert {begun.line(number).end_reported for number in range(99)} == {True}
    assert begun.table.written <= 1 + 99 / 20
