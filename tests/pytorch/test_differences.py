"""What is not as on one slot is said in one line, once in a trial, and only where it is so."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optuna_deadline_torch.consensus import ReplicatedState
from optuna_deadline_torch.decisions import SegmentController
from optuna_deadline_torch.differences import differences, warn_of_differences
from torch import nn

ALWAYS = [
    "It rounds otherwise.",
    "What is drawn at random draws other numbers of the same kind.",
    "What your own code keeps of a batch is of a slot's slice.",
]


def lines_of(model: nn.Module, precision: str = "") -> list[str]:
    return [sentence for _, sentence in differences(model, precision)]


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(2, 2),
        nn.Linear(2, 2).double(),
        nn.GroupNorm(1, 2),
        nn.LayerNorm(2),
        nn.InstanceNorm1d(2),
        nn.SyncBatchNorm(2),
        nn.BatchNorm1d(2).eval(),
        nn.Dropout(0.0),
        nn.Dropout(0.5).eval(),
        nn.MultiheadAttention(2, 1),
        nn.LSTM(2, 2, num_layers=2),
    ],
    ids=lambda model: f"{model}".replace("\n", ""),
)
def test_of_an_ordinary_model_only_what_is_true_of_all_is_said(model: nn.Module) -> None:
    assert lines_of(model) == lines_of(model, "32-true") == lines_of(model, "64-true") == ALWAYS


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout2d(0.1),
        nn.AlphaDropout(0.1),
        nn.MultiheadAttention(2, 1, dropout=0.1),
        nn.LSTM(2, 2, num_layers=2, dropout=0.1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_dropout_is_named(layer: nn.Module) -> None:
    assert lines_of(nn.Sequential(layer))[1].startswith("Dropout and what else is drawn at random")


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.LazyBatchNorm1d])
def test_norms_over_a_batch_are_named_and_warned_of(
    norm: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    made = [norm() if "Lazy" in norm.__name__ else norm(2) for _ in range(5)]
    warn_of_differences(2, nn.Sequential(*made), "32-true")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Norms over a batch (0, 1, 2 and 2 more) see a slot's slice of it" in record.message


def test_running_statistics_of_samples_are_those_of_a_slice_too() -> None:
    assert "see a slot's slice" in lines_of(nn.InstanceNorm1d(2, track_running_stats=True))[-1]


@pytest.mark.parametrize(
    ("model", "precision", "named"),
    [
        (nn.Linear(2, 2), "bf16-mixed", "bf16-mixed"),
        (nn.Linear(2, 2), "16-mixed", "16-mixed"),
        (nn.Linear(2, 2), "transformer-engine", "transformer-engine"),
        (nn.Linear(2, 2, dtype=torch.bfloat16), "", "torch.bfloat16"),
    ],
)
def test_few_digits_are_named(model: nn.Module, precision: str, named: str) -> None:
    assert lines_of(model, precision)[0] == f"It rounds otherwise, in few digits with {named}."


def test_without_a_norm_over_a_batch_the_line_is_information(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "optuna_deadline"):
        warn_of_differences(3, nn.Dropout(0.5), "bf16-mixed")
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.message == (
        "This training on 3 slots, compared with one: It rounds otherwise, in few digits with"
        " bf16-mixed. Dropout and what else is drawn at random draws other numbers of the same"
        " kind. What your own code keeps of a batch is of a slot's slice."
    )


def test_it_is_said_once_in_a_trial_by_its_first_rank() -> None:
    def pilot(rank: int) -> SegmentController:
        segment: Any = SimpleNamespace(rank=rank, world_size=2)
        return SegmentController(
            segment,
            direction="minimize",
            seed=0,
            save_every=60.0,
            take_state=dict,
            trained=lambda: ReplicatedState([], [], ""),
        )

    first, second, resumed = pilot(0), pilot(1), pilot(0)
    assert [first.should_log("slots"), first.should_log("slots"), first.should_log("resumed")] == [
        1,
        0,
        1,
    ]
    assert not second.should_log("slots")
    resumed.logged_topics = {*second.logged_topics}  # as a checkpoint has it, of any rank
    assert not resumed.should_log("slots")
