"""A plan asks for trials with parameters of its own, and sees those of all trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optuna
import pytest

from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.trials import OptunaTrials, TrialOpener
from optuna_deadline.policies import Opening, Pause, Plan, Run, Snapshot
from optuna_deadline.simulation import Cluster, Workload, simulate


@dataclass
class Asks:
    """Opens one trial after the other with given parameters, on all slots."""

    wanted: list[dict[str, Any]]
    reads_parameters = True

    def plan(self, snapshot: Snapshot) -> Plan:
        self.seen = {trial.number: dict(trial.params) for trial in snapshot.trials}
        missing = [params for params in self.wanted if params not in self.seen.values()]
        alive = [trial.number for trial in snapshot.trials if trial.alive]
        room = snapshot.capacity - len(alive)
        runs = {n: Run(1, "t") if n in alive[: snapshot.capacity] else Pause("w") for n in alive}
        opened = tuple(Opening(params, "asked for") for params in missing[: max(0, room)])
        return Plan(runs, openings=opened, gate_open=bool(missing))


def test_a_simulated_trial_has_the_parameters_that_were_asked_for() -> None:
    curves = tuple((float(best),) for best in (1, 2, 3))
    known = tuple({"lr": lr, "other": 0} for lr in (0.1, 0.2, 0.3))
    workload = Workload("three", curves, (1.0,) * 3, known)
    policy = Asks([{"lr": 0.3, "other": 0}, {"lr": 0.2, "other": 0}])
    outcome = simulate(policy, workload, Cluster(slots=1), deadline="60s")
    assert (outcome.trials, outcome.value) == (2, 3.0)
    assert policy.seen == dict(enumerate(policy.wanted))
    with pytest.raises(ValueError, match=r"has no configuration with \{'lr': 9\}"):
        workload.configuration_with({"lr": 9})


def test_an_optuna_trial_has_them_whatever_is_enqueued(sqlite_url: str) -> None:
    study = optuna.create_study(storage=sqlite_url)
    study.enqueue_trial({"x": 0.9})
    trials = OptunaTrials(study)
    number, trial_id = trials.open({"x": 0.25})
    assert trials.parameters()[number].params == {"x": 0.25}, "before the objective asks"
    trial = optuna.Trial(study, trial_id)
    assert trial.suggest_float("x", 0, 1) == 0.25 and 0 <= trial.suggest_float("y", 0, 1) <= 1
    trial.set_user_attr("size", "large")
    found = trials.parameters()[number]
    assert found.params == trial.params and found.user_attrs == {"size": "large"}
    assert trials.open() == (0, 1), "the enqueued one is still there"


@dataclass
class Copies:
    """Trains one trial to a step, and then another one from its checkpoint."""

    parent: int = 0

    def plan(self, snapshot: Snapshot) -> Plan:
        self.reports = {trial.number: [r.step for r in trial.reports] for trial in snapshot.trials}
        alive = [trial for trial in snapshot.trials if trial.alive]
        runs = {alive[-1].number: Run(1, "the newest")} if alive else {}
        runs |= {trial.number: Pause("was copied") for trial in alive[:-1]}  # type: ignore[misc]
        if len(self.reports) == 1 and alive and alive[0].step >= 5:
            copy = Opening({"lr": 0.2}, "a copy", parent=self.parent)
            return Plan({0: Pause("is copied")}, openings=(copy,))
        return Plan(runs, start=0 if snapshot.trials else 1)


WORKLOAD = Workload(
    "two", (tuple(range(20)), tuple(range(100, 120))), (1.0,) * 2, ({"lr": 0.1}, {"lr": 0.2})
)


def test_a_trial_starts_from_the_checkpoint_of_another() -> None:
    policy = Copies()
    outcome = simulate(policy, WORKLOAD, Cluster(slots=1), deadline="60s")
    assert policy.reports[1][0] == 6 and outcome.value == 119.0


def test_a_parent_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        DeadlineError, match="to start from trial 7, which the study does not have"
    ):
        simulate(Copies(parent=7), WORKLOAD, Cluster(slots=1), deadline="60s")


def test_a_lost_answer_loses_no_parent() -> None:
    study = optuna.create_study()
    table = MemoryTable("pool", 1, now=lambda: 1000.0, deadline=1e6)
    table.register("me", "host", 1, [], 1)
    term, opener = table.elect_planner("me"), TrialOpener(OptunaTrials(study), table, "me")
    assert term is not None and opener.open(term) == 0
    write = table.open_trial

    def lose(*arguments: Any) -> None:
        table.open_trial = write  # type: ignore[method-assign]
        raise ConnectionError

    table.open_trial = lose  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        opener.open(term, {"lr": 0.2}, 0)
    assert opener.open(term) == 1 and [row.parent for row in table.trials()] == [None, 0]
