"""Every sampler of Optuna under a planner: what it searches is searched, and no error ends it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import optuna
import pytest
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    CmaEsSampler,
    GPSampler,
    GridSampler,
    NSGAIIISampler,
    NSGAIISampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import FrozenTrial, Trial, TrialState

from optuna_deadline import DeadlineSampler
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Grant, NewReport
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.planning.optuna_storage import stop_opening
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.trials import OptunaTrials
from optuna_deadline.policies.registry import make_policy
from optuna_deadline.study import agreement

BEGAN = 1000.0
STEPS = 4
GRID = {"a": [1, 2, 3], "b": [0, 1]}
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


def cell(trial: Trial) -> float:
    """A point of a space of six."""
    return float(trial.suggest_categorical("a", [1, 2, 3]) + trial.suggest_int("b", 0, 1))


def point(trial: Trial) -> float:
    """A point of a space without end."""
    return trial.suggest_float("x", 0, 1) + trial.suggest_float("y", 0, 1)


def points(trials: Iterable[FrozenTrial]) -> Counter[tuple[tuple[str, Any], ...]]:
    """How often each point was tried."""
    return Counter(tuple(sorted(trial.params.items())) for trial in trials)


@dataclass
class Work:
    """A planner, and one worker of two slots that trains a step a second."""

    study: optuna.Study
    objective: Callable[[Trial], float] = cell
    policy: str = "adaptive_halving"
    time: float = BEGAN
    deadline: float = BEGAN + 200
    held: dict[int, Grant] = field(default_factory=dict)
    steps: Counter[int] = field(default_factory=Counter)
    #: How many points had been tried to their end when a trial was opened, by trial.
    finished_before: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = MemoryTable(now=lambda: self.time, deadline=self.deadline)
        self.table.register("me", "host", 1, [], 2)
        self.restart()

    def restart(self) -> None:
        """Another process takes over."""
        study = optuna.load_study(
            study_name=self.study.study_name,
            storage=self.study._storage,
            sampler=self.study.sampler,
        )
        self.planner = Planner(
            OptunaTrials(study), self.table, make_policy(self.policy, {}), direction="minimize",
            worker_id="me", clock=lambda: self.time,
        )  # fmt: skip

    def run(self, until: float | None = None) -> None:
        """Work until the study is settled, or for some seconds."""
        end = self.deadline + 60 if until is None else self.time + until
        while self.time < end:
            self.time += 1
            self.table.renew("me", [pair for grant in self.held.values() for pair in grant.slots])
            finished = len(points(self.study.get_trials(deepcopy=False, states=FINISHED)))
            self.planner.tick()
            for trial in self.study.get_trials(deepcopy=False):
                self.finished_before.setdefault(trial.number, finished)
            orders = self.table.orders("me")
            if orders.settled:
                return
            wanted = {line.number: line for line in orders.trials if line.worker == "me"}
            for number in list(self.held):
                line = wanted.get(number)
                if (
                    line is None
                    or line.mode != "run"
                    or line.slots != len(self.held[number].slots)
                ):
                    state = "retired" if line is not None and line.mode == "stop" else "paused"
                    self._release(number, state, ended="pause")
            for number, line in wanted.items():
                free = self.table.free_slots("me")
                if line.mode == "run" and line.owner is None and len(free) >= line.slots:
                    grant = self.table.acquire("me", number, free[: line.slots])
                    if grant is not None:
                        self.held[number] = grant
            for number, grant in list(self.held.items()):
                self._train(number, grant)

    def _train(self, number: int, grant: Grant) -> None:
        line = next(line for line in self.table.trials() if line.number == number)
        trial = Trial(self.study, line.trial_id)
        value = self.objective(trial)
        self.steps[number] += 1
        step = self.steps[number]
        self.table.add_reports("me", grant, [NewReport(step, value, float(step))])
        trial.report(value, step)
        if step == STEPS:
            self._release(number, "complete", ended="complete", value=value)

    def _release(self, number: int, outcome: str, **how: Any) -> None:
        assert self.table.release("me", self.held.pop(number), outcome, **how)


ENDLESS: dict[str, Callable[[], BaseSampler]] = {
    "tpe": lambda: TPESampler(n_startup_trials=3, seed=1),
    "random": lambda: RandomSampler(seed=1),
    "qmc": lambda: QMCSampler(seed=1),
    "cmaes": lambda: CmaEsSampler(n_startup_trials=2, seed=1),
    "gp": lambda: GPSampler(n_startup_trials=3, deterministic_objective=True, seed=1),
    "nsgaii": lambda: NSGAIISampler(population_size=4, seed=1),
    "nsgaiii": lambda: NSGAIIISampler(population_size=4, seed=1),
    "partial": lambda: PartialFixedSampler({"x": 0.5}, RandomSampler(seed=1)),
}
FINITE: dict[str, Callable[[], BaseSampler]] = {
    "grid": lambda: GridSampler(GRID, seed=1),
    "brute": lambda: BruteForceSampler(seed=1),
    "strict_brute": lambda: BruteForceSampler(avoid_premature_stop=True, seed=1),
}
#: While two are begun BruteForceSampler may draw one twice. A strict one draws at random until
#: every point has finished, so nothing bounds it.
MOST = {"grid": 6, "brute": 7}
bare_or_wrapped = pytest.mark.parametrize("wrap", [lambda s: s, lambda s: DeadlineSampler(s)])
pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:optuna"),
]


def _study(sampler: BaseSampler) -> optuna.Study:
    return optuna.create_study(sampler=sampler)


def test_every_sampler_of_optuna_is_tested() -> None:
    known = {type(make()) for make in (*ENDLESS.values(), *FINITE.values())}
    there = {getattr(optuna.samplers, name) for name in optuna.samplers.__all__}
    kinds = {kind for kind in there if isinstance(kind, type) and issubclass(kind, BaseSampler)}
    assert {kind.__name__ for kind in kinds - known} == {"BaseSampler", "BaseGASampler"}


@bare_or_wrapped
@pytest.mark.parametrize("name", ENDLESS)
def test_a_sampler_without_end_searches_to_the_deadline(name: str, wrap: Any) -> None:
    if name == "cmaes":
        pytest.importorskip("cmaes")
    study = _study(wrap(ENDLESS[name]()))
    work = Work(study, point, deadline=BEGAN + 25)
    work.run()
    assert work.table.orders("me").settled
    assert work.time > work.deadline - 10
    states = Counter(trial.state for trial in study.trials)
    assert set(states) <= {TrialState.COMPLETE, TrialState.PRUNED} and states.total() > 4
    assert study.best_value <= min(trial.value or 9.0 for trial in study.trials)


def check_exhausted(work: Work, name: str) -> None:
    """All six points were tried, and no trial was opened after all of them had finished."""
    tried = points(work.study.get_trials(deepcopy=False))
    assert len(tried) == 6
    assert max(work.finished_before.values()) < 6
    assert tried.total() <= MOST.get(name, tried.total())


@bare_or_wrapped
@pytest.mark.parametrize("policy", ["adaptive_halving", "fifo", "hypersched", "asha_promote"])
@pytest.mark.parametrize("name", FINITE)
def test_a_search_that_is_exhausted_closes_the_gate_and_ends_what_is_open(
    name: str, policy: str, wrap: Any
) -> None:
    study = _study(wrap(FINITE[name]()))
    work = Work(study, policy=policy)
    work.run()
    assert work.table.orders("me").settled
    assert work.time < work.deadline - 50
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert study.best_value == 1.0
    check_exhausted(work, name)


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("seconds", range(2, 14, 2))
def test_a_restart_begins_no_exhausted_search_again(name: str, seconds: int) -> None:
    study = _study(FINITE[name]())
    work = Work(study, policy="fifo")
    for _ in range(6):
        work.run(seconds)
        work.restart()
    work.run()
    assert work.table.orders("me").settled
    check_exhausted(work, name)


def test_what_was_enqueued_is_run_after_an_exhausted_search() -> None:
    study = _study(BruteForceSampler(seed=1))
    work = Work(study, policy="fifo")
    work.run(4)
    study.enqueue_trial({"a": 1, "b": 1})
    study.enqueue_trial({"a": 1, "b": 1})
    work.run()
    assert not [trial for trial in study.trials if trial.state is TrialState.WAITING]
    assert work.table.orders("me").settled


def test_a_study_that_its_objective_stops_ends_with_the_trials_that_run() -> None:
    study = _study(RandomSampler(seed=1))
    work = Work(study, policy="fifo")
    work.run(2)
    begun = len(study.trials)
    stop_opening(study)
    study.enqueue_trial({"x": 0.5})
    work.run()
    assert work.table.orders("me").settled and work.time < work.deadline - 100
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.COMPLETE] * begun + [TrialState.WAITING]


def test_a_stopped_study_opens_trials_again_once_its_deadline_is_extended(
    storage_url: str,
) -> None:
    study = optuna.create_study(storage=storage_url)
    engine = open_table(study)
    agreement.fix(engine, study, "1h")
    stop_opening(study)
    trials = OptunaTrials(study)
    assert trials.exhausted()
    agreement.extend(engine, study, "2h")
    assert not trials.exhausted()


def test_a_sampler_that_fails_after_a_trial_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """GridSampler does, where the last cell but one trial was enqueued."""
    study = _study(GridSampler(GRID, seed=1))
    study.enqueue_trial({"a": 1, "b": 1})
    work = Work(study, policy="fifo")
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        work.run()
    assert work.table.orders("me").settled
    assert study.best_value == 1.0


class FailsAfter(RandomSampler):
    """Has a mistake in what it does after a trial."""

    def after_trial(self, *_: Any) -> None:
        raise KeyError("grid_id")


def test_an_error_of_after_trial_is_said_and_the_end_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    study = _study(FailsAfter(seed=1))
    work = Work(study, point, policy="fifo", deadline=BEGAN + 20)
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        work.run()
    assert work.table.orders("me").settled
    assert "RandomSampler failed after trial 0" in caplog.text or "FailsAfter" in caplog.text
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
