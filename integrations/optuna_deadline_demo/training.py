"""The training of each task of the demo: Lightning with the deadline's callback, and no output."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from optuna_deadline_lightning import DeadlineCallback
from torch.utils.data import DataLoader, TensorDataset

#: Options of the trainer for a demo and a benchmark: nothing on the screen or beside it.
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Rows(L.LightningDataModule):
    """Rows in memory, split once and for all.

    Args:
        train: Those to train on, in random order.
        validation: Those to validate on.
        batch: Of the training, whatever the number of slots.
        validation_batch: Of the validation.
    """

    def __init__(
        self, train: TensorDataset, validation: TensorDataset, batch: int, validation_batch: int
    ) -> None:
        super().__init__()
        self.train, self.validation = train, validation
        self._batch, self._validation_batch = batch, validation_batch

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled batches."""
        return DataLoader(self.train, batch_size=self._batch, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Rows that are equal each time."""
        return DataLoader(self.validation, batch_size=self._validation_batch)


@dataclass(frozen=True)
class Objective:
    """The objective of a task.

    Attributes:
        monitor: The value that is reported, as the module logs it.
        max_epochs: The epochs of a whole training.
        suggest: Chooses the parameters of a trial.
        network: Makes the module of parameters.
        data: Makes the data of parameters.
        options: Further options of the trainer, by parameters.
    """

    monitor: str
    max_epochs: int
    suggest: Callable[[Any], dict[str, Any]]
    network: Callable[..., L.LightningModule]
    data: Callable[[dict[str, Any]], L.LightningDataModule]
    options: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}

    def __call__(self, trial: Any) -> float:
        """Train until the trial has to leave, or to the last epoch; the monitored value there."""
        hush()
        torch.manual_seed(0)
        given = self.suggest(trial)
        model = self.network(**given)
        deadline = DeadlineCallback(trial, monitor=self.monitor)
        trainer = L.Trainer(
            max_epochs=self.max_epochs,
            callbacks=[deadline],
            **QUIET,
            **self.options(given),
            **deadline.trainer_options(),
        )
        trainer.fit(model, datamodule=self.data(given), ckpt_path=deadline.ckpt_path)
        return trainer.callback_metrics[self.monitor].item()


def hush() -> None:
    """The live view has the screen; Lightning's advice on workers and steps is not for a demo."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    warnings.filterwarnings("ignore", module=r"torch\.distributed.*")
