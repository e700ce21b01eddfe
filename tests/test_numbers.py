"""A number of NumPy's is taken wherever one of Python's is, and stored as one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import optuna
import pytest

from optuna_deadline import DeadlinePruner, Price, WorkerOptions, resumable
from optuna_deadline._numbers import is_count, plain_number
from optuna_deadline.options import StudyOptions
from optuna_deadline.policies import HyperSched
from optuna_deadline.study.policy_choice import parse
from optuna_deadline.values.deadlines import parse_deadline


@pytest.mark.parametrize("value", [np.int64(2), np.uint8(2), np.float32(2), np.float64(2)])
def test_a_scalar_becomes_plain(value: Any) -> None:
    found = plain_number(value)
    assert found == 2 and type(found) in (int, float)
    assert parse_deadline(value).duration == 2.0


@pytest.mark.parametrize("value", [2, 0.5, True, None, "2", [np.int64(2)], optuna])
def test_anything_else_stays(value: Any) -> None:
    assert plain_number(value) is value


def test_truth_values_and_fractions_are_no_counts() -> None:
    assert is_count(1, 1) and not is_count(0, 1)
    assert not any(is_count(value, 0) for value in (True, 1.0, "1", None))


def test_options_policies_and_prices_are_stored_as_json() -> None:
    one, two, half = np.int64(1), np.int64(2), np.float32(0.5)
    price = Price(half, granularity=one, node=two, then=(("1h", half),))
    assert json.loads(json.dumps(asdict(price)))["then"] == [["1h", 0.5]]
    _, parameters = parse(HyperSched(max_resource=two, recharge=half))
    assert json.loads(json.dumps(parameters))["max_resource"] == 2
    worker = WorkerOptions(keep_warm=one, max_slots=two, weight=half, cpus=two)
    assert [type(n) for n in (worker.keep_warm, worker.max_slots, worker.weight)] == [
        int,
        int,
        float,
    ]
    assert json.dumps(StudyOptions(deadline="1h", n_trials=two).given.parameters)


def test_a_plain_study_stores_the_numbers_of_its_pruner() -> None:
    study = optuna.create_study(pruner=DeadlinePruner("1h", max_resource=np.int64(3)))

    def objective(trial: optuna.Trial) -> float:
        for step in resumable(trial, steps=np.int64(3), state={}):
            step.report(np.float32(0.5))
        return 0.5

    study.optimize(objective, n_trials=2)
    assert [len(trial.intermediate_values) for trial in study.trials] == [3, 3]
