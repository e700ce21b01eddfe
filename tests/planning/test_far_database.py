"""Where the database is far away, training ends in time for all ends to be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import optuna
import pytest

from optuna_deadline.allocation.records import Orders, PlannedTrial, ReportRow
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.forecasting.throughput import (
    PRIOR_STOP,
    closing_seconds,
    distant_database_seconds,
)
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.policies import Plan, Policy, Snapshot
from optuna_deadline.policies.base import Resources
from optuna_deadline.study import policy_choice

DEADLINE = 1e6


def test_a_database_nearby_costs_no_training() -> None:
    assert distant_database_seconds([0.002] * 5, 64, 3600.0) == 0.0
    assert distant_database_seconds([], 64, 3600.0) == 0.0


def test_the_farther_it_is_and_the_more_trials_train_the_earlier() -> None:
    """At 34 ms and with four slots it took 15 s from the last step to the end of the study."""
    assert distant_database_seconds([0.034] * 5, 4, 3600.0) == pytest.approx(13.6, abs=0.1)
    assert distant_database_seconds([0.034] * 5, 8, 3600.0) > distant_database_seconds(
        [0.034] * 5, 4, 3600.0
    )
    assert distant_database_seconds([0.15] * 5, 4, 3600.0) > 60


def test_a_stall_that_passes_is_no_distance() -> None:
    assert distant_database_seconds([0.002, 5.0, 5.0, 5.0, 5.0], 4, 3600.0) == 0.0
    assert distant_database_seconds([5.0, 5.0], 4, 3600.0) == 0.0, "nor is the first connection"


def test_a_tenth_of_the_time_is_spent_on_it_at_most() -> None:
    assert distant_database_seconds([0.15] * 5, 4, 60.0) == 6.0
    assert distant_database_seconds([0.15] * 5, 4, -60.0) == 0.0


class FarTable(MemoryTable):
    """Each look at the plan takes as long as a round trip."""

    def orders(self, worker_id: str) -> Orders:
        world.time += world.trip
        return super().orders(worker_id)


@dataclass
class World:
    """A study with one worker of four slots, that is planned from far away."""

    trip: float = 0.0
    time: float = 1000.0

    def begin(self, policy: Policy | None = None, started: float = 1000.0) -> Planner:
        self.table = FarTable(now=lambda: self.time, started=started, deadline=DEADLINE)
        self.table.register("me", "host", 1, [], 4)
        study = optuna.create_study(direction="maximize")
        return Planner(
            OptunaTrials(study), self.table, policy or policy_choice.make("fifo", {}),
            direction="maximize", worker_id="me", clock=lambda: self.time,
        )  # fmt: skip


world = World()


@pytest.mark.parametrize(("trip", "closed"), [(0.002, False), (0.034, True)])
def test_the_planner_closes_so_much_earlier(trip: float, closed: bool) -> None:
    world.trip = trip
    planner = world.begin()
    for _ in range(4):
        planner.tick()
    world.time = DEADLINE - 10.0
    world.table.renew("me", [])
    planner.tick()
    assert world.table.orders("").settled is closed


def test_a_study_ends_whose_stored_start_is_after_its_deadline() -> None:
    """The clock was set back while no process watched, and then the deadline was moved."""
    world.time, world.trip = DEADLINE - 100.0, 0.034
    planner = world.begin(started=DEADLINE + 3600.0)
    planner.tick()
    assert world.table.orders("").started <= world.time and not world.table.orders("").settled
    for _ in range(4):
        planner.tick()
    world.time = DEADLINE + 1.0
    world.table.renew("me", [])
    planner.tick()
    assert world.table.orders("").settled and world.table.orders("").started <= DEADLINE


class Noting(Resources):
    """Notes until when it is to plan."""

    deadlines: ClassVar[list[float]] = []

    def plan(self, snapshot: Snapshot) -> Plan:
        self.deadlines.append(snapshot.deadline)
        return Plan()


def test_a_policy_plans_until_training_must_stop() -> None:
    """A trial that it starts after that would make no step."""
    world.time, world.trip = 1000.0, 0.0
    planner = world.begin(Noting())
    planner.tick()
    closes = DEADLINE - closing_seconds(PRIOR_STOP)
    assert Noting.deadlines == [closes] and planner.closes_at == closes
    world.time = closes + 0.001
    world.table.renew("me", [])
    planner.tick()
    assert Noting.deadlines == [closes] and world.table.orders("").settled


class SlowOptuna(OptunaTrials):
    """Each end takes its time; meanwhile another worker stands for election."""

    def __init__(self, study: optuna.Study, seconds: float) -> None:
        super().__init__(study)
        self.seconds, self.ended, self.deposed = seconds, list[int](), False

    def end(self, row: PlannedTrial, reports: Callable[[], list[ReportRow]]) -> None:
        super().end(row, reports)
        self.ended.append(row.number)
        world.time += self.seconds
        self.deposed = world.table.elect_planner("other") is not None


@pytest.mark.parametrize(("seconds", "told"), [(1.0, 25), (31.0, 1)])
def test_the_ends_of_many_trials_are_told_by_one_planner(seconds: float, told: int) -> None:
    """All take longer than a lease together; a planner that loses the election stops."""
    world.time, world.trip = 1000.0, 0.0
    world.table = FarTable(now=lambda: world.time, started=1000.0, deadline=DEADLINE, ttl=6.0)
    for name in ("me", "other"):
        world.table.register(name, "host", 1, [], 4)
    study = optuna.create_study(direction="maximize")
    trials = SlowOptuna(study, seconds)
    planner = Planner(
        trials, world.table, policy_choice.make("fifo", {}), direction="maximize",
            worker_id="me", clock=lambda: world.time,
    )  # fmt: skip
    term = planner.try_elect()
    assert term is not None
    for trial in [study.ask() for _ in range(25)]:
        world.table.open_trial("me", term, trial.number, trial._trial_id)
    world.table.retire("me", term, dict.fromkeys(range(25), "others were better"))
    planner.tick()
    assert trials.ended == list(range(told)) and trials.deposed is (told == 1)
