"""The steps that compare a loss on one slot and two, in a process that is about to leave.

A module's ``training_step`` is called as Lightning calls it, without other hooks or callbacks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import lightning.pytorch as pl
import torch
from optuna_deadline_torch.rehearsal import NextBatch, Rehearsal, next_batch, skipped
from optuna_deadline_torch.seeding import MOVING, reseed


def rehearsed(trainer: pl.Trainer, epoch: int, number: int, *, seed: int) -> str | None:
    """Why the loss is not a mean over its batch; None if it is one or that is unknown.

    Args:
        trainer: The trainer, all of whose state is saved: it does not train on.
        epoch: The next epoch.
        number: The next batch of it.
        seed: Seeds the steps.
    """
    batch = next_batch(trainer.train_dataloader, epoch, number)
    if batch is None:
        return skipped("the training data is more than one loader, or cannot be distributed")
    try:
        # A validation, after which it may leave, has neither gradients nor ordinary tensors.
        with torch.inference_mode(False), torch.enable_grad():
            return _verdict(trainer, batch, seed)
    except Exception as error:
        return skipped(f"training_step raised {type(error).__name__}: {error}")


def _verdict(trainer: pl.Trainer, batch: NextBatch, seed: int) -> str | None:
    module: Any = trainer.lightning_module
    loop = trainer.fit_loop.epoch_loop
    if not trainer.training:
        loop.val_loop._on_evaluation_model_train()
        trainer.training = True
    module.log = module.log_dict = _nothing
    precision: Any = trainer.precision_plugin
    scaler = getattr(precision, "scaler", None)
    rehearsal = Rehearsal(module, [*trainer.optimizers, scaler])
    place = seed, batch.epoch, batch.number, trainer.global_rank
    for part, one in batch.read(place):
        reseed(*place, MOVING, part.salt)
        one = module._on_before_batch_transfer(precision.convert_input(one), dataloader_idx=0)
        one = trainer.strategy.batch_to_device(one, dataloader_idx=0)
        arguments = loop._build_kwargs(OrderedDict(), one, batch.number)
        rehearsal.begin(*place, part.salt)
        with precision.train_step_context():
            output = module.training_step(*arguments.values())
        if module.automatic_optimization:
            loss = output["loss"] if isinstance(output, dict) else output
            (loss if scaler is None else scaler.scale(loss)).backward()
        rehearsal.end(part)
    return rehearsal.verdict()


def _nothing(*_: Any, **__: Any) -> None:
    """Replaces ``self.log``."""
