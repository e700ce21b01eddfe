"""What ``optuna-deadline check`` is given."""

from __future__ import annotations

import os
from typing import Any

import pytest

from optuna_deadline.cli import check
from optuna_deadline.errors import DeadlineError


def test_parameters_that_are_not_given_are_drawn_once_by_the_seed() -> None:
    def drawn(seed: int) -> list[Any]:
        trial = check.fixed_trial('{"lr": 0.1}', seed)
        asked = [trial.suggest_float("width", 0, 1) for _ in range(2)]
        return [trial.suggest_float("lr", 0, 1), *asked]

    lr, width, again = drawn(1)
    assert lr == 0.1 and width == again
    assert drawn(1) == [lr, width, again] and drawn(2)[1] != width


@pytest.mark.parametrize("text", ["[1]", "{", "0.1"])
def test_parameters_are_one_json_object(text: str) -> None:
    with pytest.raises(DeadlineError, match="--params"):
        check.fixed_trial(text, 0)


def test_a_move_needs_as_many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "present_gpus", lambda: [])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    with pytest.raises(DeadlineError, match="needs 2 CPUs, and this process has 1"):
        check.choose_devices(None, None, 2)
    assert check.choose_devices(None, None, 1) == ["cpu:0"]


def test_gpus_are_taken_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(check, "present_gpus", lambda: [0, 1, 2])
    assert check.choose_devices(None, None, 2) == ["gpu:0", "gpu:1"]
    assert check.choose_devices("none", None, 2) == ["cpu:0", "cpu:1"]
    monkeypatch.setattr(check, "present_gpus", lambda: [0])
    assert check.choose_devices(None, None, 2) == ["cpu:0", "cpu:1"]


def test_fewer_gpus_than_slots_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optuna_deadline.worker.devices.present_gpus", lambda: [0, 1])
    with pytest.raises(DeadlineError, match="--slots 1, or train on CPUs with --gpus none"):
        check.choose_devices("1", None, 2)
    assert check.choose_devices(None, "1,0", 2) == ["gpu:1", "gpu:0"]
