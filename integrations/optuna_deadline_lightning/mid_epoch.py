"""Gradients that wait for their step in a fit, where a checkpoint is made between the two.

With two optimizers one may accumulate while the other steps; and a validation may come before the
last batch of an accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from optuna_deadline_torch import gradients
from optuna_deadline_torch.gradients import Named


def watch(trainer: pl.Trainer) -> None:
    """Note which gradients a step has used; call in ``on_train_start``.

    Only where the module steps by itself: else Lightning knows whether it accumulates.
    """
    if not trainer.lightning_module.automatic_optimization:
        gradients.watch(trainer.optimizers)


def waiting(trainer: pl.Trainer) -> dict[str, torch.Tensor]:
    """The gradients that no step has used yet, by parameter; every rank calls it.

    Where ranks have gradients of their own this is their mean, as the step would use it.
    """
    automatic = trainer.lightning_module.automatic_optimization
    if automatic and not trainer.fit_loop._should_accumulate():
        return {}
    found = gradients.waiting(_trained(trainer))
    return found if trainer.world_size == 1 else _mean(trainer, found)


def put_back(trainer: pl.Trainer, waited: Mapping[str, torch.Tensor]) -> None:
    """Let training go on with gradients that were waiting."""
    gradients.put_back(_trained(trainer), waited)


def _trained(trainer: pl.Trainer) -> Iterator[Named]:
    return gradients.trained(trainer.lightning_module, trainer.optimizers)


def _mean(trainer: pl.Trainer, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    trained = dict(_trained(trainer))
    # By torch itself: in a validation the strategy combines nothing.
    held = torch.tensor([float(name in found) for name in trained])
    anywhere = held.to(trainer.strategy.root_device)
    dist.all_reduce(anywhere)
    mean: dict[str, torch.Tensor] = {}
    for name, holds in zip(trained, anywhere.tolist(), strict=True):
        if holds:
            own = found[name].clone() if name in found else torch.zeros_like(trained[name])
            dist.all_reduce(own)
            mean[name] = own / trainer.world_size
    return mean
