"""One walk over all that a training keeps outside Lightning's checkpoints, by name."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.mixins.hparams_mixin import HyperparametersMixin
from lightning.pytorch.utilities.model_helpers import is_overridden
from optuna_deadline_torch.module_walk import ModuleWalk
from optuna_deadline_torch.object_walk import Place
from optuna_deadline_torch.user_code import UserCode, is_of_library

#: Of a trainer, which training may change.
_SETTINGS = {
    "accumulate_grad_batches", "check_val_every_n_epoch", "gradient_clip_val",
    "limit_train_batches", "limit_val_batches",
}  # fmt: skip
LIMITS = "trainer.max_epochs", "trainer.max_steps"


class Walk(ModuleWalk):
    """The values of a training.

    Args:
        trainer: The trainer of the training; None for its data alone.
        loaders: The loaders of its training data.
    """

    of_modules = frozenset(vars(pl.LightningModule()))
    foreign = (pl.LightningModule,)

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
        module, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop
        self._saved_elsewhere(module)
        self._seen |= {id(trainer), *map(id, trainer.optimizers)}
        for name, owner in zip(LIMITS, (trainer.fit_loop, loop), strict=True):
            attribute = name.rpartition(".")[2]
            node, set_limit = getattr(owner, attribute), partial(setattr, owner, attribute)
            self.places[name] = Place(node, node, set_limit)
        modes = loop.val_loop._module_mode.mode if trainer.evaluating else {}
        self._module(module, modes, saves=_saves(module))
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
        self._optimizers(trainer.optimizers)
        self._attributes("trainer", trainer, _of_trainers())

    def _mappings(self, holder: Any) -> dict[str, MutableMapping[str, Any]]:
        return {"hparams": holder.hparams} if isinstance(holder, HyperparametersMixin) else {}


def _saves(one: Any) -> bool:
    """Whether the user saves its state in a hook."""
    if isinstance(one, pl.LightningModule):
        return is_overridden("on_save_checkpoint", one)
    base: Any = Callback if isinstance(one, Callback) else pl.LightningDataModule
    hooks = [hook for hook in ("state_dict", "on_save_checkpoint") if hasattr(base, hook)]
    return any(getattr(type(one), hook) is not getattr(base, hook) for hook in hooks)


_OF_DATA = frozenset(vars(pl.LightningDataModule()))


@lru_cache(1)
def _of_trainers() -> frozenset[str]:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return frozenset(vars(pl.Trainer(accelerator="cpu", **quiet))) - _SETTINGS  # type: ignore[arg-type]
