"""Lightning objectives that a check tells apart."""

from __future__ import annotations

import itertools
from typing import Any

import lightning.pytorch as pl
import torch
from checked_objectives import data
from optuna_deadline_lightning import DeadlineCallback
from torch import nn
from torch.utils.data import DataLoader


class Net(pl.LightningModule):
    """Sorts points in two classes."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


class Forgetful(Net):
    """Its loss depends on how many steps this process has made."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.steps = itertools.count(1)  # which no checkpoint holds

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return super().training_step(batch, index) / next(self.steps)


def fit(trial: Any, kind: type[Net], precision: Any = "32-true", **options: Any) -> float:
    """Two epochs of five steps."""
    deadline = DeadlineCallback(trial, monitor="loss", **options)
    trainer = pl.Trainer(
        max_epochs=2, precision=precision, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[deadline],
        **deadline.trainer_options(),
    )  # fmt: skip
    training, validation = DataLoader(data(), 20, shuffle=True), DataLoader(data(), 50)
    model = kind(trial.suggest_float("lr", 0.01, 0.1))
    trainer.fit(model, training, validation, ckpt_path=deadline.ckpt_path)
    return trainer.callback_metrics["loss"].item()


def exact(trial: Any) -> float:
    """As the guide has it."""
    return fit(trial, Net)


def forgetful(trial: Any) -> float:
    """Its module counts steps outside of its state."""
    return fit(trial, Forgetful)


def scaled(trial: Any) -> float:
    """Its batch grows with its slots."""
    return fit(trial, Net, scaling="sqrt")


def mixed(trial: Any) -> float:
    """Its trainer computes in 8 bits of a mantissa."""
    return fit(trial, Net, precision="bf16-mixed")


def checked(trial: Any) -> float:
    """Checked in the study's first trial."""
    return fit(trial, Net, check=True)


def checked_forgetful(trial: Any) -> float:
    """Checked, and found to differ."""
    return fit(trial, Forgetful, check=True)


def second_forgetful(trial: Any) -> float:
    """The second of two fits counts steps outside of its module's state."""
    return fit(trial, Net, fit="first") + fit(trial, Forgetful, fit="second")
