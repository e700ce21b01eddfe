"""A trial that Optuna has opened comes to the table, and an enqueued configuration is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.trial import TrialState

from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.trials import OptunaTrials, Trials
from optuna_deadline.policies.api import Pause, Plan, Run, Snapshot

TTL = 30.0
WANTED = {"lr": 0.123}


class OneAfterTheOther:
    """A policy that has one trial alive at a time, and remembers what it saw."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}

    def plan(self, snapshot: Snapshot) -> Plan:
        """As above."""
        self.seen = {trial.number: trial.state for trial in snapshot.trials}
        alive = [trial.number for trial in snapshot.trials if trial.alive]
        orders = {n: Run(1, "alone") if n == alive[0] else Pause("waits") for n in alive}
        return Plan(orders=orders, start=0 if alive else 1)


class Scene:
    """Two planners of one study in memory."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.database = MemoryDatabase()
        self.workers: set[str] = set()
        self.policy = OneAfterTheOther()
        self.study = optuna.create_study(direction="maximize")
        self.trials = OptunaTrials(self.study)

    def planner(self, me: str, trials: Trials | None = None) -> Planner:
        """One of a worker that is alive."""
        table = MemoryTable(
            "pool", 1, now=lambda: self.now, deadline=2000.0, ttl=TTL, database=self.database
        )
        table.register(me, me, 1, [], 1)
        self.workers.add(me)
        made = Planner(
            trials or self.trials, table, self.policy, direction="maximize",
            worker_id=me, clock=lambda: self.now,
        )  # fmt: skip
        self.table = table
        return made

    def wait(self, seconds: float) -> None:
        """Time passes, and the workers renew their leases."""
        self.now += seconds
        for me in self.workers:
            self.table.renew(me, [])

    def on_the_table(self) -> list[tuple[int, str]]:
        """Number and mode of the trials there."""
        return [(line.number, line.mode) for line in self.table.trials()]

    def in_optuna(self) -> list[tuple[TrialState, object]]:
        """State and enqueued configuration of the trials there."""
        return [
            (trial.state, trial.system_attrs.get("fixed_params")) for trial in self.study.trials
        ]


@pytest.fixture
def scene() -> Scene:
    """A study with a configuration in its queue."""
    made = Scene()
    made.study.enqueue_trial(WANTED)
    return made


class Away(OptunaTrials):
    """The database goes away once, after Optuna has opened a trial."""

    def __init__(self, study: optuna.Study, then: Callable[[], None] = lambda: None) -> None:
        super().__init__(study)
        self.then = then

    def open(self, params: Any = None) -> tuple[int, int]:
        """Its answer is lost once."""
        answer = super().open(params)
        then, self.then = self.then, lambda: None
        then()
        return answer


def database_away() -> None:
    raise sa.exc.OperationalError("INSERT", {}, Exception("terminating connection"))


def fail_to_open(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Planner:
    """A planner whose table is away after Optuna has created the trial."""
    planner = scene.planner("a")
    with monkeypatch.context() as away:
        away.setattr(MemoryTable, "open_trial", lambda *_: database_away())
        with pytest.raises(sa.exc.OperationalError):
            planner.tick()
    return planner


def test_where_the_table_is_away_after_optunas_answer_the_same_trial_is_opened(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = fail_to_open(scene, monkeypatch)
    assert scene.on_the_table() == []
    scene.wait(1)
    planner.tick()
    assert scene.on_the_table() == [(0, "run")]
    assert scene.in_optuna() == [(TrialState.RUNNING, WANTED)]


def test_where_optunas_answer_is_lost_the_enqueued_configuration_is_adopted(scene: Scene) -> None:
    planner = scene.planner("a", Away(scene.study, database_away))
    with pytest.raises(sa.exc.OperationalError):
        planner.tick()
    scene.wait(1)
    planner.tick()
    assert scene.on_the_table() == [(0, "run")]
    assert scene.in_optuna() == [(TrialState.RUNNING, WANTED)]


def test_no_more_trials_are_opened_than_there_are_slots(scene: Scene) -> None:
    planner = scene.planner("a")
    scene.policy.plan = lambda _: Plan(start=100)  # type: ignore[method-assign]
    planner.tick()
    assert scene.on_the_table() == [(0, "run")]


def test_a_new_planner_adopts_the_enqueued_configuration_that_a_dead_one_took(
    scene: Scene,
) -> None:
    scene.trials.open()  # and is killed
    scene.planner("a").tick()
    assert scene.on_the_table() == [(0, "run")]
    assert scene.in_optuna() == [(TrialState.RUNNING, WANTED)]


def test_a_new_planner_adopts_the_cell_of_a_grid_that_a_dead_one_took(scene: Scene) -> None:
    scene.study.sampler = optuna.samplers.GridSampler({"lr": [0.1, 0.2]})
    scene.study.ask()
    scene.trials = OptunaTrials(scene.study)
    scene.trials.open()  # and is killed
    scene.planner("a").tick()
    assert [number for number, _ in scene.on_the_table()] == [0, 1]


def test_a_new_planner_leaves_alone_what_was_sampled_or_not_enqueued(scene: Scene) -> None:
    """A plain worker trains the one, and may be about to sample the other."""
    scene.study.ask().suggest_float("lr", 0, 1)
    scene.study.ask()
    scene.planner("a").tick()
    assert scene.on_the_table() == [(2, "run")]
    assert [state for state, _ in scene.in_optuna()] == [TrialState.RUNNING] * 3


def test_a_planner_that_is_deposed_while_it_opens_enqueues_the_configuration_again(
    scene: Scene,
) -> None:
    """The new planner has looked for strays before."""

    def deposed() -> None:
        scene.now += TTL + 1
        scene.planner("b")
        assert scene.table.elect_planner("b") == 2

    planner = scene.planner("a", Away(scene.study, deposed))
    assert planner.tick() is False
    assert scene.on_the_table() == []
    assert scene.in_optuna() == [(TrialState.PRUNED, WANTED), (TrialState.WAITING, WANTED)]


def test_a_trial_that_was_opened_before_a_gap_is_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = fail_to_open(scene, monkeypatch)
    scene.wait(TTL + 1)
    planner.tick()
    assert scene.on_the_table() == [(1, "run")]
    assert scene.in_optuna() == [(TrialState.PRUNED, WANTED), (TrialState.RUNNING, WANTED)]


def test_an_enqueued_configuration_that_never_had_a_slot_waits_for_an_extension(
    scene: Scene,
) -> None:
    planner = scene.planner("a")
    planner.tick()
    scene.wait(1000)
    planner.tick()
    assert scene.table.orders("a").settled
    assert scene.in_optuna() == [(TrialState.PRUNED, WANTED), (TrialState.WAITING, WANTED)]


def test_an_extension_while_the_planner_closes_holds(scene: Scene) -> None:
    class Extended(OptunaTrials):
        def end_strays(self, known: set[int]) -> None:
            with scene.table.writing() as tx:
                tx.run("UPDATE @study SET deadline = 3000.0 WHERE study_id = :study")
            super().end_strays(known)

    planner = scene.planner("a", Extended(scene.study))
    planner.tick()
    scene.wait(1000)
    planner.tick()
    assert not scene.table.orders("a").settled
    scene.wait(1)
    planner.tick()
    assert scene.on_the_table() == [(0, "stop"), (1, "run")]


def test_a_planner_that_is_elected_again_sees_what_came_and_ended_meanwhile(scene: Scene) -> None:
    first = scene.planner("a")
    for _ in range(2):
        first.tick()
        scene.wait(1)
    scene.wait(TTL + 1)
    second = scene.planner("b")
    second.tick()
    assert (first.try_elect(), second.is_elected) == (None, True)
    term = scene.table.elect_planner("b")
    assert term is not None
    number, trial_id = scene.trials.open()
    scene.table.open_trial("b", term, number, trial_id)
    scene.table.conclude("b", term, number, "complete", "meanwhile", 0.5)
    second.tick()
    assert [line.end_reported for line in scene.table.trials()] == [False, True]
    scene.wait(TTL + 1)
    first.tick()
    assert first.is_elected
    assert scene.policy.seen == {0: "ready", 1: "complete"}
