"""Gradients that wait for their step, where a checkpoint is made between the two.

With two optimizers one may accumulate while the other steps. Such gradients are part of what
training goes on from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

_USED = "_optuna_deadline_used"  # the version of a gradient that a step has used
Named = tuple[str, nn.Parameter]


def watch(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Note from now on which gradients a step has used."""
    for optimizer in optimizers:
        optimizer.register_step_post_hook(_note_used)


def trained(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Named]:
    """The parameters that optimizers step, by their names in the model."""
    groups = (group for one in optimizers for group in one.param_groups)
    wanted = {id(parameter) for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in wanted:
            yield name, parameter


def waiting(parameters: Iterable[Named]) -> dict[str, torch.Tensor]:
    """The gradients that no step has used yet, by parameter."""
    return {
        name: parameter.grad.detach()
        for name, parameter in parameters
        if parameter.grad is not None
        and getattr(parameter.grad, _USED, None) != parameter.grad._version
    }


def put_back(parameters: Iterable[Named], gradients: Mapping[str, torch.Tensor]) -> None:
    """Let training go on with gradients that were waiting."""
    for name, parameter in parameters:
        if name in gradients:
            parameter.grad = gradients[name].to(parameter, copy=True)


def _note_used(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                setattr(parameter.grad, _USED, parameter.grad._version)
