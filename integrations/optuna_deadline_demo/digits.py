"""A convolutional network on scikit-learn's digits, as a user writes it.

1,797 real scans of 8x8 pixels, 1,437 to train on and 360 to validate on, always the same. They
are doubled to 16x16, so that an epoch takes long enough for a second slot to be worth having.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from optuna_deadline_demo.training import Objective

MONITOR = "val_acc"
MAX_EPOCHS = 27
BATCH = 128  # of the whole step, whatever the number of slots


def images() -> tuple[Tensor, Tensor]:
    """Load and scale all images; return them with their labels."""
    pixels, labels = load_digits(return_X_y=True)
    scaled = torch.tensor(pixels / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
    return F.interpolate(scaled, scale_factor=2.0, mode="bilinear"), torch.tensor(labels)


IMAGES, LABELS = images()  # loaded once on a host: each trial's process is forked from this one


class Digits(L.LightningDataModule):
    """The images, split once and for all."""

    def setup(self, stage: str) -> None:
        """Split them."""
        parts = train_test_split(
            range(len(IMAGES)), test_size=360, random_state=0, stratify=LABELS
        )
        self.train, self.validation = (TensorDataset(IMAGES[i], LABELS[i]) for i in parts)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled batches."""
        return DataLoader(self.train, batch_size=BATCH, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """All of it at once."""
        return DataLoader(self.validation, batch_size=360)


class Net(L.LightningModule):
    """Three convolutions and a linear layer."""

    def __init__(self, width: int, dropout: float, lr: float, weight_decay: float) -> None:
        super().__init__()
        self.lr, self.weight_decay = lr, weight_decay
        self.layers = nn.Sequential(
            *_block(1, width),
            *_block(width, 2 * width),
            nn.MaxPool2d(2),
            *_block(2 * width, 4 * width),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(4 * width * 16, 10),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """The loss of one batch."""
        images, labels = batch
        return F.cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Log the share of digits that are read right, as ``val_acc``."""
        images, labels = batch
        right = (self.layers(images).argmax(1) == labels).float().mean()
        self.log("val_acc", right)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(
            self.parameters(), self.lr, 0.9, weight_decay=self.weight_decay, nesterov=True
        )


def _block(channels: int, width: int) -> tuple[nn.Module, ...]:
    # Norms over groups do not depend on how many slots share a batch; batch norms would.
    return nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()


def suggest(trial: Any) -> dict[str, Any]:
    """Choose the parameters of a trial."""
    return {
        "width": trial.suggest_int("width", 16, 24, step=4),
        "dropout": trial.suggest_float("dropout", 0.0, 0.5),
        "lr": trial.suggest_float("lr", 1e-4, 0.1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
    }


objective = Objective(MONITOR, MAX_EPOCHS, suggest, Net, lambda _: Digits())
