"""The demo's objective: real digits, a fixed split, and nothing on the screen."""

from __future__ import annotations

import optuna
import pytest

pytest.importorskip("lightning")
pytest.importorskip("sklearn")

import torch
from optuna_deadline_demo import digits

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_the_split_is_the_same_each_time_and_shares_no_image() -> None:
    first, second = digits.Digits(), digits.Digits()
    first.setup("fit")
    second.setup("fit")
    images, labels = first.train.tensors
    assert len(images) == 1437 and len(first.validation) == 360
    assert images.shape[1:] == (1, 16, 16)
    assert set(labels.tolist()) == set(range(10))
    assert torch.equal(images, second.train.tensors[0])
    seen = {image.numpy().tobytes() for image in images}
    assert not any(i.numpy().tobytes() in seen for i in first.validation.tensors[0])


def test_one_epoch_under_plain_optuna_learns_something_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(digits, "MAX_EPOCHS", 2)
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial({"width": 16, "dropout": 0.1, "lr": 0.01, "weight_decay": 1e-5})
    study.optimize(digits.objective, n_trials=1)
    assert study.best_value > 0.5
    assert len(study.best_trial.intermediate_values) == 2
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""
