"""A scheduler that no checkpoint holds is seen before it has begun again."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from optuna_deadline.module_values import warn_of_schedulers


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def test_a_scheduler_that_is_not_named_is_told(caplog: pytest.LogCaptureFixture) -> None:
    optimizer, bare = _optimizer(), _optimizer()
    lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=21)
    warn_of_schedulers(
        {"model": torch.nn.Linear(1, 1), "bare": bare, "optimizer": optimizer}, "pass scheduler=it"
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "resumes: pass scheduler=it." in caplog.text


@pytest.mark.parametrize("kind", ["alone", "sequential", "chained", "plateau"])
def test_a_scheduler_that_is_named_is_not(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    optimizer = _optimizer()
    first = lr_scheduler.ConstantLR(optimizer)
    second = lr_scheduler.ExponentialLR(optimizer, 0.9)
    named = {
        "alone": lambda: first,
        "sequential": lambda: lr_scheduler.SequentialLR(optimizer, [first, second], [2]),
        "chained": lambda: lr_scheduler.ChainedScheduler([first, second]),
        "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer),
    }
    warn_of_schedulers({"optimizer": optimizer, "scheduler": named[kind]()}, "pass it")
    assert not caplog.records
