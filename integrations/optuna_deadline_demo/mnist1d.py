"""Noisy curves in ten classes, made by a formula in the manner of MNIST-1D.

Each class is a smooth curve of twelve points; a row stretches it, moves it, shears it and adds
noise that is correlated along the row (Greydanus and Kobak, "Scaling down deep learning with
MNIST-1D", 2020; the curves are ours). 4,000 rows to train on and 2,500 to validate on, so one row
is 0.0004 of the accuracy. Good networks are rare, and most of them need their last epochs.
"""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from optuna_deadline_demo.training import Objective, Rows

MONITOR = "accuracy"
MAX_EPOCHS = 60
CLASSES, LENGTH = 10, 40
TRAINING_ROWS, VALIDATION_ROWS = 4000, 2500

_POINTS = 12
_Rows = NDArray[np.float64]


def rows() -> tuple[Tensor, Tensor]:
    """All rows with their classes, the same each time."""
    random = np.random.default_rng(1)
    curves = np.stack([_curve(random) for _ in range(CLASSES)])
    classes = np.arange(TRAINING_ROWS + VALIDATION_ROWS) % CLASSES
    random.shuffle(classes)
    found = np.stack([_distort(curves[number], random) for number in classes])
    found = (found - found.mean()) / found.std()
    return torch.tensor(found, dtype=torch.float32).unsqueeze(1), torch.tensor(classes)


def _curve(random: np.random.Generator) -> _Rows:
    """A random sum of the four slowest waves."""
    x = np.linspace(0.0, math.pi, _POINTS)
    waves = [random.normal() / number * np.cos(number * x) for number in range(1, 5)]
    total = np.sum(waves, axis=0)
    return np.asarray((total - total.mean()) / total.std())


def _distort(curve: _Rows, random: np.random.Generator) -> _Rows:
    """One row: the curve at a random place, size and slope, in noise."""
    length = int(random.integers(12, 25))
    stretched = np.interp(np.linspace(0, _POINTS - 1, length), np.arange(_POINTS), curve)
    stretched = stretched * random.uniform(0.6, 1.4)
    row = np.zeros(LENGTH)
    begin = int(random.integers(0, LENGTH - length + 1))
    row[begin : begin + length] = stretched
    row += random.normal(0.0, 0.4) * np.linspace(-1.0, 1.0, LENGTH)
    noise = np.convolve(random.normal(size=LENGTH + 4), np.ones(5) / math.sqrt(5), mode="valid")
    return np.asarray(row + 0.35 * noise + 0.05 * random.normal(size=LENGTH))


ROWS, CLASS_OF = rows()  # made once on a host: each trial's process is forked from this one


def curves(batch: int) -> Rows:
    """The rows in their fixed split."""
    train = TensorDataset(ROWS[:TRAINING_ROWS], CLASS_OF[:TRAINING_ROWS])
    validation = TensorDataset(ROWS[TRAINING_ROWS:], CLASS_OF[TRAINING_ROWS:])
    return Rows(train, validation, batch, 500)


class CurveNet(L.LightningModule):
    """Convolutions along the row, each of them with a group norm, and a linear layer."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        self.parameters_ = parameters
        width, depth, kernel = (parameters[name] for name in ("width", "depth", "kernel"))
        layers: list[nn.Module] = []
        for index in range(depth):
            stride = 2 if index in (1, 3) else 1
            channels = width if index else 1
            layers += [
                nn.Conv1d(channels, width, kernel, stride=stride, padding=kernel // 2),
                nn.GroupNorm(4, width),
                nn.ReLU(),
            ]
        layers += [nn.AdaptiveAvgPool1d(5), nn.Flatten(), nn.Dropout(parameters["dropout"])]
        self.layers = nn.Sequential(*layers, nn.Linear(5 * width, CLASSES))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """The loss of one batch, whose rows are moved and made noisy."""
        images, classes = batch
        given = self.parameters_
        shift = int(torch.randint(-given["shift"], given["shift"] + 1, ()))
        images = torch.roll(images, shift, -1) + given["noise"] * torch.randn_like(images)
        return F.cross_entropy(
            self.layers(images), classes, label_smoothing=given["label_smoothing"]
        )

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Log the share of rows that are recognized, as ``accuracy``."""
        images, classes = batch
        self.log(MONITOR, (self.layers(images).argmax(1) == classes).float().mean())

    def configure_optimizers(self) -> Any:
        """AdamW, with a learning rate that falls to zero along a half cosine."""
        given = self.parameters_
        optimizer = torch.optim.AdamW(
            self.parameters(), given["lr"], weight_decay=given["weight_decay"]
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, MAX_EPOCHS)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def suggest(trial: Any) -> dict[str, Any]:
    """Choose the parameters of a trial."""
    return {
        "width": trial.suggest_categorical("width", (16, 32, 64, 96)),
        "depth": trial.suggest_int("depth", 1, 5),
        "kernel": trial.suggest_categorical("kernel", (3, 5, 7)),
        "batch": trial.suggest_categorical("batch", (32, 64, 128, 256)),
        "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-5, 1.0, log=True),
        "dropout": trial.suggest_float("dropout", 0.0, 0.5),
        "label_smoothing": trial.suggest_float("label_smoothing", 0.0, 0.2),
        "noise": trial.suggest_float("noise", 0.0, 0.5),
        "shift": trial.suggest_int("shift", 0, 8),
    }


objective = Objective(MONITOR, MAX_EPOCHS, suggest, CurveNet, lambda given: curves(given["batch"]))
