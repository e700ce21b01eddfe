"""The training of all methods: a small network, with recorded steps of about 20 ms.

Rank 0 writes a line for each step to a file. The times are those of the machine's monotonic clock,
so that processes can be compared.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 12, 64  # steps of an epoch, samples of a step over all ranks
_PACE = 0.02  # minimum seconds of a step, so that a directive finds the trial training


class Net(L.LightningModule):
    """Two layers on random data; the result does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """The loss of a batch."""
        time.sleep(_PACE)
        features, labels = batch
        return F.cross_entropy(self.layers(features), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        """Log the accuracy."""
        features, labels = batch
        self.log("val_acc", (self.layers(features).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum, which has a state."""
        return torch.optim.SGD(self.parameters(), 0.01, 0.9)


def loader(batch_size: int = BATCH, *, samples: int = STEPS * BATCH) -> DataLoader[Any]:
    """The same samples each time."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(samples, 64), torch.randint(10, (samples,)))
    return DataLoader(data, batch_size=batch_size)


class Notes(L.Callback):
    """Records the end of each step."""

    def __init__(self, file: Path, trial: int = 0) -> None:
        self._file, self._trial = file, trial
        self.note("objective")

    def note(self, what: str, step: int = 0, ranks: int = 0) -> None:
        """Write a whole line, also beside other writers."""
        if os.environ.get("RANK", "0") == "0":
            line = {"at": time.time(), "trial": self._trial, "what": what, "step": step}
            with self._file.open("a") as file:
                file.write(json.dumps({**line, "ranks": ranks}) + "\n")

    def on_wake(self) -> None:
        """Record that the warm process continues."""
        self.note("wake")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record that everything is set up and restored."""
        if trainer.is_global_zero:
            self.note("fit", trainer.global_step, trainer.world_size)

    def on_train_batch_end(self, trainer: L.Trainer, *arguments: Any) -> None:
        """Record the end of a step."""
        if trainer.is_global_zero:
            self.note("step", trainer.global_step, trainer.world_size)


def read(file: Path) -> list[dict[str, Any]]:
    """All records, in the order of their times."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: line["at"])


def quiet() -> dict[str, Any]:
    """Options of a trainer without output and files."""
    return {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
