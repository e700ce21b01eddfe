"""Unused gradients, and hooks of an epoch's or a fit's start, for a trial that comes back.

With two optimizers one may accumulate while the other steps, and a validation may come before the
last batch of an accumulation: such gradients are part of the state.

Lightning calls no ``on_train_epoch_start`` in a resumed epoch. What two of its own callbacks set
up there is in no checkpoint: how many batches make a step, and the scheduler of an average. A
module or a callback of the user may set the epoch of a dataset there, so theirs are called again,
without changing what a checkpoint has already restored. Lightning calls the hooks of a fit's start
in each segment, as if the trial began there; what they change is put back, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
)
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden
from optuna_deadline_torch import states
from optuna_deadline_torch.saver import copied

from optuna_deadline.optimizer_state import restore_kinds


def watch(trainer: pl.Trainer) -> None:
    """Record which gradients a step has used; call in ``on_train_start``.

    Only if the module steps or clears by itself: otherwise Lightning knows.
    """
    if not _clears(trainer):
        states.watch(trainer.optimizers)


def waiting(trainer: pl.Trainer) -> dict[str, torch.Tensor]:
    """The gradients that the next backward pass adds to, by parameter; every rank calls it.

    If ranks have gradients of their own, this is their mean, as the step would use it.
    """
    read = any(_own_hooks(trainer, "on_before_zero_grad"))  # those of the step before
    if _clears(trainer) and not trainer.fit_loop._should_accumulate() and not read:
        return {}
    both = trainer.lightning_module, trainer.optimizers
    found = states.held(*both) if read else states.waiting(*both)
    if trainer.world_size > 1:
        found = _mean(trainer, found)
    return found if _clears(trainer) else {**states.kept(*both), **found}


def put_back(trainer: pl.Trainer, waited: Mapping[str, torch.Tensor]) -> None:
    """Restore gradients that were waiting."""
    states.put_back(trainer.lightning_module, trainer.optimizers, waited)


def _clears(trainer: pl.Trainer) -> bool:
    """Whether Lightning clears the gradients before each backward pass that begins a step."""
    module = trainer.lightning_module
    own = ("optimizer_zero_grad", "optimizer_step")
    return module.automatic_optimization and not any(is_overridden(one, module) for one in own)


def _mean(trainer: pl.Trainer, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    trained = dict(states.trained(trainer.lightning_module, trainer.optimizers))
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


def call_epoch_start(
    trainer: pl.Trainer, module: pl.LightningModule, reseed: Callable[[], None]
) -> None:
    """Call the user's ``on_train_epoch_start`` for an epoch that is resumed in its middle.

    Call it before the rest of the checkpoint is restored: attributes, epoch means, gradients.

    Args:
        trainer: The trainer.
        module: Its module.
        reseed: Seeds the start of the epoch.
    """
    callbacks, overridden = _own_hooks(trainer, "on_train_epoch_start")
    if not callbacks and not overridden:
        return
    before = Trained(trainer)
    before.note_weights()
    optimizers = copied([one.state_dict() for one in trainer.optimizers], _on_cpu)
    for callback in callbacks:
        state = copy.deepcopy(callback.state_dict())
        callback.on_train_epoch_start(trainer, module)
        if state:
            callback.load_state_dict(state)
    reseed()
    if overridden:
        call._call_lightning_module_hook(trainer, "on_train_epoch_start")
    before.put_back(optimizers)


class Trained:
    """The weights and optimizers that a checkpoint has, which hooks may set as at a trial's start.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._weights: dict[str, torch.Tensor] = {}

    def note_weights(self) -> None:
        """Copy the weights and buffers as they are now."""
        weights = self._trainer.lightning_module.state_dict()
        self._weights = {
            name: _on_cpu(one) for name, one in weights.items() if isinstance(one, torch.Tensor)
        }

    def put_back(self, optimizers: Sequence[Any]) -> None:
        """Undo what has changed them since, given the states of the optimizers."""
        for optimizer, state in zip(self._trainer.optimizers, optimizers, strict=False):
            optimizer.load_state_dict(state)
            restore_kinds(optimizer, state)
        with torch.no_grad():
            for name, tensor in self._trainer.lightning_module.state_dict().items():
                before = self._weights.get(name)
                if before is not None and not torch.equal(tensor.detach().cpu(), before):
                    tensor.copy_(before)
        self._weights = {}


def starts_by_itself(trainer: pl.Trainer) -> bool:
    """Whether the user's hooks of a fit's start, which each segment calls, may set something."""
    hooks = ("on_fit_start", "on_train_start")
    return any(any(_own_hooks(trainer, name)) for name in hooks)


def _own_hooks(trainer: pl.Trainer, name: str) -> tuple[list[Callback], bool]:
    """The user's callbacks with a hook, and whether the module has it."""
    libraries = ("lightning", "optuna_deadline_lightning")  # they keep what they need
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    own = [
        one
        for one in callbacks
        if getattr(type(one), name).__module__.partition(".")[0] not in libraries
    ]
    return own, is_overridden(name, trainer.lightning_module)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def begin_again(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Set them up; call when the hooks of a resumed fit's start have run."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GradientAccumulationScheduler):
            callback.on_train_epoch_start(trainer, module)
        elif isinstance(callback, StochasticWeightAveraging):
            _average_again(callback, trainer, module)


def _average_again(
    callback: StochasticWeightAveraging, trainer: pl.Trainer, module: pl.LightningModule
) -> None:
    # Only if it had started: in the epoch of the batch norms, its last, no rank leaves.
    if callback._scheduler_state is None or trainer.current_epoch > callback.swa_end:
        return
    groups = trainer.optimizers[0].param_groups
    rates = [group["lr"] for group in groups]  # restored; a new scheduler sets its own
    callback.on_train_epoch_start(trainer, module)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
