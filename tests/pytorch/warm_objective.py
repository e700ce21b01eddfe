"""The same small training twice, with Lightning and by hand, whose tensors leave the CPU's memory.

On this machine the device is the CPU itself: whatever is given up is freed there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from optuna_deadline_lightning import DeadlineCallback
from optuna_deadline_torch import ElasticLoop, warm_memory
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from optuna_deadline.policies import Pause, Plan, Run, Snapshot

EPOCHS, BATCHES = 6, 10


def note(trial: int, fence: int, step: int, what: str = "step") -> None:
    """One line for each step, in whichever process."""
    line = {"trial": trial, "fence": fence, "step": step, "pid": os.getpid(), "what": what}
    with (Path(os.environ["TRACE"]) / "steps.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


class Net(pl.LightningModule):
    """Has dropout, batch norm, an average of its own, and hooks that note when it is warm."""

    def __init__(self, trial: Any) -> None:
        super().__init__()
        # in the ranks alone, which build networks
        warm_memory.is_device_memory = lambda device: True
        torch.manual_seed(3)
        self.body = nn.Sequential(
            nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 2)
        ).double()
        self.average = [part.detach().clone() for part in self.body.parameters()]
        self.deadline_trial = trial

    def on_keep_warm(self) -> None:
        self.write_progress("warm")
        for part in self.average:
            assert part.untyped_storage().nbytes()

    def on_wake(self) -> None:
        self.write_progress("wake")
        for part in self.average:
            assert part.untyped_storage().nbytes()

    def write_progress(self, what: str, step: int = -1) -> None:
        trial = self.deadline_trial
        note(trial.number, trial.segment.fence, step, what)

    def forward(self, x: Any) -> Any:
        return self.body(x)

    def follow(self) -> None:
        for part, now in zip(self.average, self.body.parameters(), strict=True):
            part.mul_(0.9).add_(now.detach(), alpha=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(0.06)  # an epoch is longer than a look of the planner, on a busy machine too
        self.write_progress("step", self.trainer.global_step)
        self.follow()
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(20 * BATCHES, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def keep(trial: Any, model: Net) -> None:
    """The weights and the average that only this process knows."""
    path = Path(os.environ["TRACE"]) / f"final-{trial.number}.pt"
    torch.save([model.state_dict(), model.average], path)


def with_lightning(trial: Any) -> float:
    model = Net(trial)
    deadline = DeadlineCallback(trial, monitor="val_loss")
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        callbacks=[deadline],
        logger=False,
        enable_progress_bar=False,
        **deadline.trainer_options(),
    )
    loaders = DataLoader(data(), 20, shuffle=True), DataLoader(data(), 50)
    trainer.fit(model, *loaders, ckpt_path=deadline.ckpt_path)
    keep(trial, model)
    return float(trainer.callback_metrics["val_loss"])


def by_hand(trial: Any) -> float:
    model = Net(trial)
    [optimizer], [schedule] = model.configure_optimizers()
    loop = ElasticLoop(trial, model, optimizer, epochs=EPOCHS, schedule=schedule["scheduler"])
    for _ in loop.epochs():
        model.train()
        for x, y in loop.batches(DataLoader(data(), 20, shuffle=True)):
            time.sleep(0.06)
            model.write_progress("step", loop.steps)
            model.follow()
            optimizer.zero_grad()
            loop.backward(nn.functional.cross_entropy(loop.model(x), y))
            optimizer.step()
            schedule["scheduler"].step()
        model.eval()
        with torch.no_grad():
            x, y = data().tensors
            loop.report(float(nn.functional.cross_entropy(model(x), y)))
    keep(trial, model)
    return loop.result()


def in_turns(snapshot: Snapshot) -> Plan:
    """Two trials on one slot, which goes to the one that has trained less."""
    alive = sorted((t for t in snapshot.trials if t.alive), key=lambda t: (t.step, t.number))
    if len(snapshot.trials) < 2:
        return Plan({trial.number: Pause("another begins") for trial in alive}, start=1)
    orders: dict[int, Any] = {trial.number: Pause("not its turn") for trial in alive}
    for trial in alive[:1]:
        orders[trial.number] = Run(1, "its turn")
    return Plan(orders, gate_open=bool(alive))
