"""Which way is better: contradictions are refused, and likely mistakes are named."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna_deadline_torch.direction import (
    Direction,
    direction_of,
    known_direction,
    warn_of_minimized_score,
)

from optuna_deadline.errors import DeadlineError

WHOLE = SimpleNamespace()  # a segment of plain Optuna says nothing


def trial_of(direction: str) -> Any:
    return SimpleNamespace(study=optuna.create_study(direction=direction))


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_worker_the_study_and_the_mode_say_it(direction: Direction) -> None:
    mode = direction[:3]
    assert direction_of(None, SimpleNamespace(direction=direction), None) == direction
    assert direction_of(trial_of(direction), WHOLE, None) == direction
    assert direction_of(trial_of(direction), WHOLE, mode) == direction
    assert direction_of(None, WHOLE, mode) == direction


def test_a_mode_that_contradicts_the_study_is_refused() -> None:
    for trial, segment in [
        (trial_of("minimize"), WHOLE),
        (None, SimpleNamespace(direction="minimize")),
    ]:
        with pytest.raises(DeadlineError, match="create the study with direction='maximize'"):
            known_direction(trial, segment, "max")


def test_without_any_word_it_is_asked_for() -> None:
    assert known_direction(None, WHOLE, None) is None
    with pytest.raises(DeadlineError, match="pass mode='min' or mode='max'"):
        direction_of(None, WHOLE, None)


@pytest.mark.parametrize(
    ("monitor", "direction", "warns"),
    [
        ("val_acc", "minimize", True),
        ("val/AUROC", "minimize", True),
        ("f1", "minimize", True),
        ("val_acc", "maximize", False),
        ("val_acc", None, False),
        ("val_loss", "minimize", False),
        ("accuracy_loss", "minimize", False),
        ("accumulated", "minimize", False),
    ],
)
def test_a_score_that_is_minimized_is_named(
    monitor: str, direction: Direction | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="optuna_deadline"):
        warn_of_minimized_score(monitor, direction)
    assert bool(caplog.messages) == warns
