"""A plan asks for trials with parameters of its own, and sees those of all trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optuna
import pytest

from optuna_deadline.planning.trials import OptunaTrials
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
