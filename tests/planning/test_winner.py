"""The best trial of a study that has a report is COMPLETE in Optuna, however it left its slots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from optuna_deadline import DeadlineSampler
from optuna_deadline.allocation.records import Grant, NewReport
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.policies.api import Order, Plan, Retire, Run, Snapshot

DEADLINE = 10_000.0
TTL = 30.0


class Scripted:
    """Starts two trials, and then orders what the test says."""

    def __init__(self) -> None:
        self.orders: Mapping[int, Order] = {}

    def plan(self, snapshot: Snapshot) -> Plan:
        """Runs all that the script does not name."""
        alive = [trial.number for trial in snapshot.trials if trial.alive]
        orders = {number: self.orders.get(number, Run(1, "fits")) for number in alive}
        return Plan(orders=orders, start=0 if snapshot.trials else 2)


class Scene:
    """A study of two trials in memory, each on a slot, and its planner."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.study = optuna.create_study(direction="maximize")
        self.table = MemoryTable("pool", 1, now=lambda: self.now, deadline=DEADLINE, ttl=TTL)
        self.table.register("w", "host", 1, [], 2)
        self.policy = Scripted()
        self.looked_at: list[Checkpoint] = []
        self.damaged: set[int] = set()
        self.planner = self.elected("w")
        self.tick()
        slots = self.table.free_slots("w")
        self.grants = {number: self._granted(number, slots[number]) for number in (0, 1)}

    def elected(self, me: str) -> Planner:
        """A planner for the study."""
        return Planner(
            OptunaTrials(self.study), self.table, self.policy, direction="maximize",
            worker_id=me, is_intact=self._whole, clock=lambda: self.now,
        )  # fmt: skip

    def _whole(self, checkpoint: Checkpoint) -> bool:
        self.looked_at.append(checkpoint)
        return checkpoint.number not in self.damaged

    def _granted(self, number: int, slot: int) -> Grant:
        grant = self.table.acquire("w", number, [slot])
        assert grant is not None
        return grant

    def tick(self, seconds: float = 1.0) -> None:
        """The leases are kept, and the planner looks."""
        self.now += seconds
        held = [pair for grant in getattr(self, "grants", {}).values() for pair in grant.slots]
        self.table.renew("w", held)
        self.planner.tick()

    def report(self, number: int, step: int, value: float, *, saves: bool = True) -> None:
        """A trial reports, and may save its model."""
        grant = self.grants[number]
        self.table.add_reports("w", grant, [NewReport(step, value, float(step))])
        if saves:
            path = Path(f"/{number}-{step}")
            new = Checkpoint(number, grant.fence, step, value, path, 1, "crc32:0")
            self.table.add_checkpoint("w", grant, new)

    def release(self, number: int, outcome: str, ended: str, failures: int = 0) -> None:
        """A trial leaves its slot."""
        grant = self.grants.pop(number)
        assert self.table.release("w", grant, outcome, ended=ended, failures=failures)

    def end(self) -> dict[int, TrialState]:
        """The deadline comes; how the trials ended in Optuna."""
        self.now = DEADLINE
        for number in list(self.grants):
            self.release(number, "paused", "deadline")
        for _ in range(3):
            self.tick()
        assert self.table.orders("w").settled
        return {trial.number: trial.state for trial in self.study.trials}


@pytest.fixture
def scene() -> Scene:
    """Both trials train, and the first is the better one."""
    return Scene()


@pytest.mark.parametrize("saves", [True, False], ids=["saved", "plain"])
def test_who_reports_the_best_value_before_it_leaves_for_good_is_complete(
    scene: Scene, saves: bool
) -> None:
    scene.report(0, 1, 0.8, saves=saves)
    scene.report(1, 1, 0.5, saves=saves)
    scene.policy.orders = {1: Retire("worse")}
    scene.tick()
    scene.report(1, 2, 0.95, saves=saves)
    scene.release(1, "retired", "stop")
    scene.tick()
    assert scene.end() == {0: TrialState.PRUNED, 1: TrialState.COMPLETE}
    assert (scene.study.best_trial.number, scene.study.best_value) == (1, 0.95)
    assert [line.state for line in scene.table.trials()] == ["retired", "complete"]


def keeps(scene: Scene, number: int, good: bool) -> None:
    """The objective leaves what the sampler's function makes a constraint of."""
    trial = scene.study.trials[number]
    scene.study._storage.set_trial_user_attr(trial._trial_id, "size", -1.0 if good else 1.0)


def sized(trial: optuna.trial.FrozenTrial) -> tuple[float]:
    return (trial.user_attrs["size"],)


@pytest.mark.parametrize("first", [0, 1], ids=["feasible", "infeasible"])
def test_a_feasible_trial_wins_whoever_ends_first(scene: Scene, first: int) -> None:
    scene.study.sampler = DeadlineSampler(optuna.samplers.TPESampler(constraints_func=sized))
    scene.planner = scene.elected("w")
    scene.report(0, 1, 0.5)
    scene.report(1, 1, 0.9)
    for number in (first, 1 - first):
        keeps(scene, number, number == 0)
        scene.policy.orders = {number: Retire("done")}
        scene.tick()
        scene.release(number, "retired", "stop")
        for _ in range(3):
            scene.tick()
    assert scene.end() == {0: TrialState.COMPLETE, 1: TrialState.PRUNED}
    assert (scene.study.best_trial.number, scene.study.best_value) == (0, 0.5)


def test_an_infeasible_trial_wins_if_all_are_and_one_line_says_so(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.report(0, 1, 0.5)
    scene.report(1, 1, 0.9)
    for trial in scene.study.trials:
        scene.study._storage.set_trial_system_attr(trial._trial_id, "constraints:size", 1.0)
    assert scene.end() == {0: TrialState.PRUNED, 1: TrialState.COMPLETE}
    assert caplog.messages.count("No trial is feasible: the best one, trial 1, violates a "
                                 "constraint.") == 1  # fmt: skip


def test_who_prunes_or_raises_after_the_best_value_is_complete(scene: Scene) -> None:
    scene.report(0, 1, 0.8)
    scene.report(1, 1, 0.9)
    scene.release(0, "retired", "pruned")
    scene.release(1, "failed", "error")
    scene.tick()
    assert scene.end() == {0: TrialState.PRUNED, 1: TrialState.COMPLETE}
    assert scene.study.best_value == 0.9


def test_who_dies_while_it_stops_goes_on_if_it_holds_the_best_model(scene: Scene) -> None:
    scene.report(0, 1, 0.8)
    scene.report(1, 1, 0.5)
    scene.policy.orders = {1: Retire("worse")}
    scene.tick()
    scene.report(1, 2, 0.95)
    scene.release(1, "paused", "died", failures=1)
    scene.tick()
    line = scene.table.trials()[1]
    assert (line.state, line.mode, line.reason) == (
        "paused",
        "pause",
        "holds the best model so far",
    )
    assert scene.end()[1] is TrialState.COMPLETE


def test_who_dies_while_it_stops_is_given_up_if_another_is_better(scene: Scene) -> None:
    scene.report(0, 1, 0.8)
    scene.report(1, 1, 0.5)
    scene.policy.orders = {1: Retire("worse")}
    scene.tick()
    scene.release(1, "paused", "died", failures=1)
    scene.tick()
    assert scene.table.trials()[1].state == "retired"


def test_optuna_hears_of_the_end_once_another_trial_is_better(scene: Scene) -> None:
    scene.report(0, 1, 0.8)
    scene.report(1, 1, 0.9)
    scene.release(1, "retired", "pruned")
    scene.tick()
    assert scene.study.trials[1].state is TrialState.RUNNING
    scene.report(0, 2, 0.95)
    scene.tick(TTL + 1)
    assert scene.study.trials[1].state is TrialState.PRUNED
    assert scene.end() == {0: TrialState.COMPLETE, 1: TrialState.PRUNED}


def test_the_file_of_a_kept_end_is_not_read_at_each_look(scene: Scene) -> None:
    scene.report(0, 1, 0.8)
    scene.report(1, 1, 0.9)
    scene.release(1, "retired", "pruned")
    scene.tick()
    scene.looked_at.clear()
    for _ in range(10):
        scene.tick(TTL / 3)
    scene.report(0, 2, 0.95, saves=False)
    scene.tick(TTL + 1)
    assert not scene.looked_at, "no row names a better model that was saved"
    scene.report(0, 3, 0.96)
    scene.tick(TTL + 1)
    assert scene.study.trials[1].state is TrialState.PRUNED


def test_where_optuna_has_heard_otherwise_of_the_best_the_next_is_complete(scene: Scene) -> None:
    """The better model was damaged when the end was told, and a planner before told it."""
    scene.report(0, 1, 0.8)
    scene.report(1, 1, 0.9)
    scene.damaged = {1}
    scene.release(1, "retired", "pruned")
    scene.tick()
    assert scene.study.trials[1].state is TrialState.PRUNED
    scene.damaged = set()
    assert scene.end() == {0: TrialState.COMPLETE, 1: TrialState.PRUNED}


def test_where_a_person_has_told_optuna_an_end_of_the_best_the_next_is_complete(
    scene: Scene,
) -> None:
    scene.report(0, 1, 0.8)
    scene.report(1, 1, 0.9)
    scene.study.tell(1, state=TrialState.PRUNED)
    scene.release(1, "retired", "finished")
    scene.tick()
    assert scene.end() == {0: TrialState.COMPLETE, 1: TrialState.PRUNED}


def test_the_next_planner_keeps_the_end_too(scene: Scene) -> None:
    scene.report(0, 1, 0.8)
    scene.report(1, 1, 0.9)
    scene.release(1, "retired", "pruned")
    scene.tick()
    scene.table.leave("w")
    scene.table.register("v", "host", 2, [], 2)
    scene.planner = scene.elected("v")
    scene.tick()
    assert scene.end()[1] is TrialState.COMPLETE


def test_who_never_reported_wins_nothing(scene: Scene) -> None:
    assert scene.end() == {0: TrialState.PRUNED, 1: TrialState.PRUNED}
