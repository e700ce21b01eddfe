"""What a tick costs does not grow with what a study has behind it: rows are counted, not time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import optuna
from optuna.trial import TrialState

from optuna_deadline.allocation.memory import MemoryTable
from optuna_deadline.allocation.records import Assignment, Desired, ReportRow
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.policies.plan import Order, Pause, Plan, Retire
from optuna_deadline.policies.snapshot import Snapshot

DEADLINE = 1e6


class CountedTable(MemoryTable):
    """Counts the reports that are read of all trials."""

    read = 0

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
    study: optuna.Study = field(default_factory=lambda: optuna.create_study(direction="maximize"))

    def __post_init__(self) -> None:
        self.table = CountedTable(now=lambda: self.time, deadline=DEADLINE)
        [slot] = [slot.id for slot in self.table.register("me", "host", 1, [], 1)]
        self.planner = Planner(
            OptunaTrials(self.study), self.table, self.policy, direction="maximize",
            started=self.time, me="me", clock=lambda: self.time,
        )  # fmt: skip
        term = self.planner.stand()
        assert term is not None
        for number in range(self.trials):
            trial = self.study.ask()
            self.table.open_trial("me", term, number, trial._trial_id)
            self.table.write_plan("me", term, [Assignment(number, "run", "me", 1, "test")])
            grant = self.table.acquire("me", number, [slot])
            assert grant is not None
            for step in range(self.steps):
                self.table.add_report("me", grant, step, float(number), step)
            self.table.release("me", grant, "paused", ended="pause")
            self.table.write_plan("me", term, [Assignment(number, "pause", None, 0, "waits")])

    def line(self, number: int) -> Desired:
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
