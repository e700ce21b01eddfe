"""Several fits in one trial share its checkpoint and its steps, and never each other's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from left_segments import FakeSegment, FakeTrial, train_in_segments
from optuna_deadline_torch import ElasticLoop

from optuna_deadline.errors import DeadlineError
from optuna_deadline.fits import begin_fit


def cross_validate(trial: Any, trained: list[str] | None = None) -> list[float]:
    """Three folds of two epochs of three steps."""
    values = []
    for fold in range(3):
        torch.manual_seed(1)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        data = [(torch.full((4, 2), float(fold + i)), torch.ones(4, 1)) for i in range(3)]
        loop = ElasticLoop(trial, model, optimizer, epochs=2, fit=f"fold-{fold}")
        for _ in loop.epochs():
            for x, y in loop.batches(data):
                loss = torch.nn.functional.mse_loss(loop.model(x), y)
                optimizer.zero_grad()
                loop.backward(loss)
                optimizer.step()
                if trained is not None:
                    trained.append(f"{fold}.{loop.steps}")
            loop.report(float(model(torch.ones(1, 2)).detach()))
        values.append(loop.result())
        values.append(float(model.weight.sum()))  # what a prediction after the fit sees
    return values


@pytest.mark.parametrize("leave_at", [1, 9, 23])
def test_folds_that_are_left_anywhere_give_the_values_of_folds_that_are_not(
    tmp_path: Path, leave_at: int
) -> None:
    expected, whole, _ = train_in_segments(tmp_path / "whole", cross_validate, 10**9)
    trained: list[str] = []
    values, reports, segments = train_in_segments(
        tmp_path / "left", lambda trial: cross_validate(trial, trained), leave_at
    )
    assert segments > 1
    assert values == expected and reports == whole
    assert sorted(reports) == list(range(6))
    assert trained == [f"{fold}.{step}" for fold in range(3) for step in range(1, 7)]


def test_a_second_fit_without_a_name_is_refused(tmp_path: Path) -> None:
    trial = FakeTrial(FakeSegment(tmp_path, 1, None, 10**9), {})
    begin_fit(trial, None)
    with pytest.raises(DeadlineError, match=r'a second fit.*give each fit.*fit="fold-1"'):
        begin_fit(trial, None)


def test_a_fit_that_has_not_ended_is_named(tmp_path: Path) -> None:
    trial = FakeTrial(FakeSegment(tmp_path, 1, None, 10**9), {})
    begin_fit(trial, "a")
    with pytest.raises(DeadlineError, match=r"The fit 'a' has not ended.*call result\(\)"):
        begin_fit(trial, "b")


def test_under_plain_optuna_steps_of_folds_follow_each_other() -> None:
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    study.optimize(lambda trial: sum(cross_validate(trial)), n_trials=1)
    assert sorted(study.trials[0].intermediate_values) == list(range(6))
