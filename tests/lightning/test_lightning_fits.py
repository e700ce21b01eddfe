"""Folds of one trial under Lightning: each goes on from its own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from elastic_harness import Plan, run_segment
from left_segments import train_in_segments
from lightning.pytorch.callbacks import EarlyStopping
from optuna_deadline_lightning import DeadlineCallback
from torch.utils.data import DataLoader, Subset, TensorDataset

DATA = TensorDataset(torch.arange(24.0).reshape(12, 2) / 24, torch.ones(12, 1))


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.2, momentum=0.9)


def cross_validate(trial: Any) -> list[float]:
    """Two folds of at most four epochs, the first of which stops early."""
    values = []
    for fold in range(2):
        deadline = DeadlineCallback(trial, monitor="val_loss", fit=f"fold-{fold}")
        stop = EarlyStopping("val_loss", min_delta=0.0 if fold else 100.0, patience=1)
        trainer = pl.Trainer(
            max_epochs=4, callbacks=[stop, deadline], logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, **deadline.trainer_options(),
        )  # fmt: skip
        model = Model()
        held_out = [number for number in range(12) if number % 2 == fold]
        others = [number for number in range(12) if number % 2 != fold]
        trainer.fit(
            model,
            DataLoader(Subset(DATA, others), 2, shuffle=True),
            DataLoader(Subset(DATA, held_out), 6),
            ckpt_path=deadline.ckpt_path,
        )
        values += [trainer.callback_metrics["val_loss"].item(), float(model.layer.weight.sum())]
    return values


def test_a_second_fit_with_the_same_callback_is_refused(tmp_path: Path) -> None:
    [rank] = run_segment(Plan(str(tmp_path), epochs=1, extras=("second fit",)))
    assert 'fit="stage-2"' in rank["error"] and len(rank["reports"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("leave_at", [2, 5, 9])
def test_folds_that_are_left_anywhere_give_the_values_of_folds_that_are_not(
    tmp_path: Path, leave_at: int
) -> None:
    expected, whole, _ = train_in_segments(tmp_path / "whole", cross_validate, 10**9)
    assert len(whole) > 4
    values, reports, segments = train_in_segments(tmp_path / "left", cross_validate, leave_at)
    assert segments > 1
    assert values == expected and reports == whole
