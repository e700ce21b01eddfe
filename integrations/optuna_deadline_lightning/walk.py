"""One walk over all that a training keeps outside Lightning's checkpoints, by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.model_helpers import is_overridden
from optuna_deadline_torch.sampler import ElasticBatchSampler
from torch import nn
from torch.utils.data import Sampler
from torchmetrics import Metric

from optuna_deadline_lightning.object_walk import OF_MODULES, ObjectWalk, Place, fill, nothing
from optuna_deadline_lightning.packing import address
from optuna_deadline_lightning.user_code import CALLABLES, UserCode, is_of_library

#: Of a trainer, which training may change.
_SETTINGS = {
    "accumulate_grad_batches", "check_val_every_n_epoch", "gradient_clip_val",
    "limit_train_batches", "limit_val_batches",
}  # fmt: skip
LIMITS = "trainer.max_epochs", "trainer.max_steps"
#: The functions that are called in the passes of a module and of a parameter.
_OF_PASSES = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_OF_GRADIENTS = "_backward_hooks", "_post_accumulate_grad_hooks"
_BUFFER_BYTES = 2**20


class Walk(ObjectWalk):
    """The values of a training.

    Args:
        trainer: The trainer of the training; None for its data alone.
        loaders: The loaders of its training data.
    """

    def __init__(self, trainer: pl.Trainer | None, loaders: Sequence[Any] = ()) -> None:
        module, data = (
            getattr(trainer, name, None) for name in ("lightning_module", "datamodule")
        )
        super().__init__(UserCode(module, data))
        if trainer is not None:
            self._training(trainer)
        self._loaders(loaders)
        if trainer is not None:
            self._globals()

    def _training(self, trainer: pl.Trainer) -> None:
        module = trainer.lightning_module
        self._elsewhere = {address(one) for one in (*module.parameters(), *module.buffers())} - {0}
        self._seen = {id(trainer), *map(id, module.modules()), *map(id, trainer.optimizers)}
        for name, parameter in module.named_parameters():
            node, trains = parameter.requires_grad, partial(setattr, parameter, "requires_grad")
            self.places[f"{name}.requires_grad"] = Place(node, node, trains)
            self._hooks(name, parameter, _OF_GRADIENTS)
        loop = trainer.fit_loop.epoch_loop
        for name, owner in zip(LIMITS, (trainer.fit_loop, loop), strict=True):
            attribute = name.rpartition(".")[2]
            node, set_limit = getattr(owner, attribute), partial(setattr, owner, attribute)
            self.places[name] = Place(node, node, set_limit)
        modes = loop.val_loop._module_mode.mode if trainer.evaluating else {}
        buffers = dict(module.named_buffers())
        kept = module.state_dict() if buffers else {}
        for name, buffer in buffers.items():
            if name not in kept:
                self._elsewhere.discard(address(buffer))
                node = self._packed(buffer, _BUFFER_BYTES)
                self.places[name] = Place(node, None, partial(fill, buffer))
        for path, part in module.named_modules():
            node = modes.get(path, part.training)
            self.places[f"{path}.training"] = Place(node, node, partial(setattr, part, "training"))
            self._hooks(path, part, _OF_PASSES)
            if not isinstance(part, Metric):
                self._attributes(path, part, OF_MODULES, saves=_saves(module))
        users: dict[str, Any] = {"": module, "datamodule": trainer.datamodule}  # type: ignore[attr-defined]
        for place, one in enumerate(trainer.callbacks):  # type: ignore[attr-defined]
            users[f"{type(one).__qualname__} {place}"] = one
        for path, one in users.items():
            if one is not None and not is_of_library(type(one)):
                if one is not module:
                    self._attributes(path, one, _OF_DATA, saves=_saves(one))
                self._class(type(one))
            elif one is not None:  # it may hold the user's functions
                for name, value in vars(one).items():
                    if isinstance(value, FunctionType):
                        self._inside(f"{path}.{name}", value)
        for place, one in enumerate(trainer.optimizers):
            self._attributes(f"optimizer {place}", one, _OF_OPTIMIZERS)
        self._attributes("trainer", trainer, _of_trainers())

    def _hooks(self, key: str, one: nn.Module | torch.Tensor, kinds: Sequence[str]) -> None:
        for kind in kinds:
            for place, hook in enumerate((getattr(one, kind, None) or {}).values()):
                self._value(f"{key}.{kind}[{place}]", hook, nothing, 0)

    def _loaders(self, loaders: Sequence[Any]) -> None:
        """Add what the user's datasets, samplers and functions of training's loaders count."""
        self._data = True
        for place, loader in enumerate(loaders):
            parts = [
                (f"loader {place}.{name}", getattr(loader, name, None))
                for name in ("dataset", "batch_sampler", "sampler", "collate_fn")
            ]
            while parts:
                key, one = parts.pop()
                if isinstance(one, ElasticBatchSampler):
                    sampler = getattr(one.batches, "sampler", None)
                    parts += [(key, one.batches), (f"{key}.sampler", sampler)]
                elif isinstance(one, CALLABLES):
                    self._called(key, one, 0)
                elif one is not None and id(one) not in self._seen:
                    if isinstance(one, Sampler) or self._has_attributes(one):
                        self._attributes(key, one)
                    within = [getattr(one, "dataset", None), *getattr(one, "datasets", ())]
                    parts += [(f"{key}.{nth}", part) for nth, part in enumerate(within)]


def _saves(one: Any) -> bool:
    """Whether the user saves its state in a hook."""
    if isinstance(one, pl.LightningModule):
        return is_overridden("on_save_checkpoint", one)
    base: Any = Callback if isinstance(one, Callback) else pl.LightningDataModule
    hooks = [hook for hook in ("state_dict", "on_save_checkpoint") if hasattr(base, hook)]
    return any(getattr(type(one), hook) is not getattr(base, hook) for hook in hooks)


_OF_DATA = frozenset(vars(pl.LightningDataModule()))
_OF_OPTIMIZERS = frozenset({"defaults", "state", "param_groups"})


@lru_cache(1)
def _of_trainers() -> frozenset[str]:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return frozenset(vars(pl.Trainer(accelerator="cpu", **quiet))) - _SETTINGS  # type: ignore[arg-type]
