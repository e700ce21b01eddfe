"""Gradients that wait for their step, where a checkpoint is made between the two.

With two optimizers one may accumulate while the other steps; and a validation may come before the
last batch of an accumulation. Such gradients are part of what training goes on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch

_USED = "_optuna_deadline_used"  # the version of a gradient that a step has used


def watch(trainer: pl.Trainer) -> None:
    """Note which gradients a step has used; call in ``on_train_start``.

    Only where the module steps by itself: else Lightning knows whether it accumulates.
    """
    if not trainer.lightning_module.automatic_optimization:
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(_note_used)


def waiting(trainer: pl.Trainer) -> dict[str, torch.Tensor]:
    """The gradients that no step has used yet, by parameter; every rank calls it.

    Where ranks have gradients of their own this is their mean, as the step would use it.
    """
    automatic = trainer.lightning_module.automatic_optimization
    if automatic and not trainer.fit_loop._should_accumulate():
        return {}
    found = {
        name: parameter.grad.detach()
        for name, parameter in _trained(trainer)
        if parameter.grad is not None
        and getattr(parameter.grad, _USED, None) != parameter.grad._version
    }
    return found if trainer.world_size == 1 else _mean(trainer, found)


def put_back(trainer: pl.Trainer, gradients: Mapping[str, torch.Tensor]) -> None:
    """Let training go on with gradients that were waiting."""
    for name, parameter in _trained(trainer):
        if name in gradients:
            parameter.grad = gradients[name].to(parameter, copy=True)


def _note_used(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                setattr(parameter.grad, _USED, parameter.grad._version)


def _trained(trainer: pl.Trainer) -> Iterator[tuple[str, torch.nn.Parameter]]:
    groups = (group for one in trainer.optimizers for group in one.param_groups)
    wanted = {id(parameter) for group in groups for parameter in group["params"]}
    for name, parameter in trainer.lightning_module.named_parameters():
        if id(parameter) in wanted:
            yield name, parameter


def _mean(trainer: pl.Trainer, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    trained = dict(_trained(trainer))
    held = torch.tensor([float(name in found) for name in trained])
    device = trainer.strategy.root_device
    anywhere: Any = trainer.strategy.reduce(held.to(device), reduce_op="sum")
    mean: dict[str, torch.Tensor] = {}
    for name, holds in zip(trained, anywhere.tolist(), strict=True):
        if holds:
            own = found[name].clone() if name in found else torch.zeros_like(trained[name])
            reduced: Any = trainer.strategy.reduce(own.detach(), reduce_op="mean")
            mean[name] = reduced
    return mean
