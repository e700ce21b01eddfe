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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


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
        if "hooks" in plan.extras:  # what the module keeps up in hooks of its own
            self.register_buffer("average", torch.zeros(12, 8))
            self.register_buffer("validations", torch.zeros(()))
        self.to(torch.float32 if plan.single else torch.float64)
        self.plan, self.seen, self.segment = plan, seen, segment
        self.lr = 0.02
        self.automatic_optimization = "two" not in plan.extras
        seen.update(steps=[], evaluated=[])

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.plan.data != "augmented" or not self.trainer.training:
            return batch
        x, y, ids = batch
        return x + 0.1 * elastic_data.noise(), y, ids

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, ids = elastic_data.triple(batch)
        step = self.trainer.global_step
        self.seen["steps"].append(
            {
                "step": step,
                "epoch": self.current_epoch,
                "batch": batch_idx,
                "lr": self.trainer.optimizers[0].param_groups[0]["lr"],
                "ids": ids.tolist(),
                "weight": self.weight(batch_idx),
            }
        )
        x = x.to(self.dtype)
        plan = self.plan
        if plan.term_rank == self.global_rank and step + 1 == plan.leave_at:
            os.kill(os.getpid(), signal.SIGTERM)
        loss = nn.functional.cross_entropy(self.body(x), y)
        if "two" in plan.extras:
            self.step_each(loss)
        return loss

    def weight(self, batch_idx: int) -> float:
        last: Any = self.trainer.callbacks[-1]  # type: ignore[attr-defined]
        return last._elastic.weight(batch_idx) if isinstance(last, DeadlineCallback) else 1.0

    def step_each(self, loss: torch.Tensor) -> None:
        """Two optimizers, of which the second steps with the gradients of three batches."""
        first, second = self.optimizers()  # type: ignore[misc, union-attr]
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        if (self.trainer.fit_loop.total_batch_idx + 1) % 3 == 0:
            second.step()
            second.zero_grad()
        if self.segment is not None:
            self.segment.step = self.trainer.global_step

    def on_before_zero_grad(self, optimizer: Any) -> None:
        if self.segment is not None:
            self.segment.step = self.trainer.global_step + 1

    def on_train_batch_end(self, *_: Any) -> None:
        if "hooks" in self.plan.extras:
            self.average.lerp_(self.body[0].weight.detach(), 0.1)

    def on_validation_end(self) -> None:
        if "hooks" in self.plan.extras and not self.trainer.sanity_checking:
            self.validations += 1

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
        if "two" in self.plan.extras:
            first, second = self.body[0], self.body[-1]
            return (
                torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9),
                torch.optim.SGD(second.parameters(), lr=0.1),
            )
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
    elastic_data.seed_anew()
    training, validation = data(plan.samples)
    model = net(plan, seen, segment)
    deadline = DeadlineCallback(
        trial,
        plan.monitor,
        save_every=plan.save_every,
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
        **deadline.trainer_options(plugins=elastic_extras.plugins(plan)),
    )
    source = elastic_data.source(plan.data, loader, training, deadline)
    held_out = DataLoader(validation, 20)
    if "divided validation" in plan.extras:
        part = DistributedSampler(validation, segment.world_size, segment.rank)
        held_out = DataLoader(validation, 20, sampler=part)
    trainer.fit(model, source, held_out, ckpt_path=deadline.ckpt_path)
    seen["extras"] = elastic_extras.states(trainer)
    seen["metrics"] = {name: float(value) for name, value in trainer.callback_metrics.items()}
    seen["lr"] = model.lr
    seen["global_step"] = trainer.global_step
    if trainer.is_global_zero:
        torch.save(model.state_dict(), Path(plan.folder) / "final.pt")
