"""A small training whose every step leaves a trace: samples, learning rate, counters."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import elastic_data
import elastic_extras
import lightning.pytorch as pl
import torch
from elastic_harness import Plan, PlayedSegment
from lightning.pytorch.callbacks import EarlyStopping
from optuna_deadline_lightning import DeadlineCallback
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    TensorDataset,
    random_split,
)

from optuna_deadline.workers.rank import seed_by_trial


def data(samples: int) -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples + 40, 8, generator=generator, dtype=torch.float64)
    y = (x[:, :3].sum(1) + 0.3 * torch.randn(len(x), generator=generator) > 0).long()
    ids = torch.arange(len(x))
    whole = TensorDataset(x, y, ids)
    return TensorDataset(*whole[:samples]), TensorDataset(*whole[samples:])


class Net(pl.LightningModule):
    def __init__(self, plan: Plan, seen: dict[str, Any], segment: Any = None) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.body = nn.Sequential(
            nn.Linear(8, 12),
            *([nn.BatchNorm1d(12)] if plan.norm else []),
            nn.Tanh(),
            nn.Dropout(plan.dropout),
            nn.Linear(12, 2),
        )
        self.to(torch.float32 if plan.single else torch.float64)
        self.plan, self.seen, self.segment = plan, seen, segment
        self.lr = 0.02
        seen.update(steps=[], rehearsed=[], evaluated=[], epochs=[])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, ids = elastic_data.triple(batch)
        step = self.trainer.global_step
        last: Any = self.trainer.callbacks[-1]  # type: ignore[attr-defined]
        self.seen["rehearsed" if getattr(last, "rehearsing", False) else "steps"].append(
            {
                "step": step,
                "epoch": self.current_epoch,
                "batch": batch_idx,
                "lr": self.trainer.optimizers[0].param_groups[0]["lr"],
                "ids": ids.tolist(),
                "weight": self.weight(batch_idx),
            }
        )
        plan = self.plan
        if plan.term_rank == self.global_rank and step + 1 == plan.leave_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.loss(self.body(x.to(self.dtype)), y)

    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(score, y)

    def weight(self, batch_idx: int) -> float:
        last: Any = self.trainer.callbacks[-1]  # type: ignore[attr-defined]
        return last._elastic.weight(batch_idx) if isinstance(last, DeadlineCallback) else 1.0

    def on_before_zero_grad(self, optimizer: Any) -> None:
        if self.segment is not None:
            self.segment.step = self.trainer.global_step + 1

    def on_train_epoch_end(self) -> None:
        found = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        self.seen["epochs"].append((self.current_epoch, found))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y, _ = batch
        score = self.body(x.to(self.dtype))
        accuracy = (score.argmax(1) == y).double().mean()
        self.log("val_acc", accuracy * float("nan") if self.plan.nan else accuracy)
        self.log("val_loss", nn.functional.cross_entropy(score, y))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.seen["evaluated"].append(self.current_epoch)

    def configure_optimizers(self) -> Any:
        if self.plan.estimate:
            assert self.trainer.estimated_stepping_batches > 0
        if self.plan.optimizer == "adam":
            optimizer: Any = torch.optim.Adam(self.parameters(), lr=self.lr)
        else:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedules = torch.optim.lr_scheduler
        config: dict[str, Any] = {"interval": "epoch"}
        if self.plan.schedule == "plateau":
            config["scheduler"] = schedules.ReduceLROnPlateau(optimizer, "max", 0.5, patience=1)
            config["monitor"] = "val_loss"
        elif self.plan.schedule == "epoch":
            config["scheduler"] = schedules.ExponentialLR(optimizer, 0.7)
        elif self.plan.schedule == "estimated":
            steps = int(self.trainer.estimated_stepping_batches)
            config["scheduler"] = schedules.CosineAnnealingLR(optimizer, steps)
            config["interval"] = "step"
        elif self.plan.schedule:
            config["scheduler"] = schedules.CosineAnnealingLR(optimizer, 40)
            config["interval"] = "step"
        self.seen["rates"] = []  # of each step, in it
        optimizer.register_step_post_hook(
            lambda *_: self.seen["rates"].append(optimizer.param_groups[0]["lr"])
        )
        if not self.plan.schedule:
            return optimizer
        return [optimizer], [config]


def train(
    plan: Plan,
    trial: Any,
    segment: PlayedSegment,
    seen: dict[str, Any],
    net: type[Net] = Net,
) -> None:
    training, validation = data(plan.samples)
    if plan.data == "random split":
        seed_by_trial(trial.number)  # as the rank of a worker does
        training, validation = random_split(
            ConcatDataset([training, validation]), [plan.samples, len(validation)]
        )
    elastic_data.seed_anew()
    model = net(plan, seen, segment)
    deadline = DeadlineCallback(
        trial,
        plan.monitor,
        save_every=plan.save_every,
        compare_gradients=plan.compare,
        scaling=plan.scaling or None,  # type: ignore[arg-type]
    )
    seen["resumed"] = deadline.ckpt_path
    kwargs: dict[str, Any] = dict(
        batch_size=plan.batch, shuffle=True, num_workers=plan.workers, drop_last=plan.drop_last
    )
    loader = (
        deadline.loader(training, **kwargs) if plan.explicit else DataLoader(training, **kwargs)
    )
    callbacks: list[Any] = [deadline]
    if plan.patience is not None:
        callbacks.append(EarlyStopping("val_loss", patience=plan.patience, min_delta=0.05))
    callbacks += elastic_extras.callbacks(plan)
    slots = {**plan.options}  # without what belongs to the slots, as a user may forget it
    if "no trainer_options" not in plan.extras:
        slots = deadline.trainer_options(plugins=elastic_extras.plugins(plan), **plan.options)
    trainer = pl.Trainer(
        **{
            "max_epochs": plan.epochs,
            "logger": False,
            "enable_checkpointing": bool({"best", "every", "best mean"} & set(plan.extras)),
            "enable_progress_bar": False,
            "callbacks": callbacks,
            "default_root_dir": plan.folder,
            **plan.trainer,
        },
        **slots,
    )
    source = elastic_data.source(plan, loader, training, segment)
    held_out = DataLoader(validation, 20)
    if "divided validation" in plan.extras:
        part = DistributedSampler(validation, segment.world_size, segment.rank)
        held_out = DataLoader(validation, 20, sampler=part)
    if "validate first" in plan.extras:
        trainer.validate(model, held_out, verbose=False)
    trainer.fit(model, source, held_out, ckpt_path=deadline.ckpt_path)
    seen["extras"] = elastic_extras.states(trainer)
    seen["metrics"] = {name: float(value) for name, value in trainer.callback_metrics.items()}
    seen["lr"] = model.lr
    seen["global_step"] = trainer.global_step
    if trainer.is_global_zero:
        torch.save(model.state_dict(), Path(plan.folder) / "final.pt")
