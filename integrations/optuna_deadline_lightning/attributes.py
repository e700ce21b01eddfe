"""The plain attributes of a module, for a trial that leaves in the middle of an epoch.

Lightning's checkpoints have parameters and buffers. A list of an epoch's losses, a count, the
state of a recurrent network, a changing rate of dropout, or the set of trained parameters would
start again in each segment. So attributes that have changed since a segment's first step are saved
too, if they consist of numbers, texts and tensors.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from optuna_deadline_torch.consensus import Consensus
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric

from optuna_deadline_lightning.packing import Unpackable, address, packed, put, same, unpacked

_log = logging.getLogger(__name__)

#: Whether a parameter is trained: a module may freeze some, and train them from an epoch on.
_TRAINED = "requires_grad"
_SCHEDULER = "state_dict"  # of a scheduler in the module
_NOT_THE_USERS = vars(pl.LightningModule()).keys()


class ModuleAttributes:
    """The plain attributes of a trainer's module and its submodules.

    Args:
        trainer: The trainer, whose module is attached.
        tells: Whether to log something about a topic.
    """

    def __init__(self, trainer: pl.Trainer, tells: Callable[[str], bool]) -> None:
        self._trainer = trainer
        self._should_log = tells
        self._saved: Mapping[str, Any] = {}
        self._restored: set[str] = set()  # restored by the module
        self._checked: set[str] = set()  # changed by the sanity check
        self._first: dict[str, Any] | None = None  # at this segment's first step

    def watch_restoring(self) -> None:
        """Skip what the module restores from the checkpoint by itself."""
        connector: Any = self._trainer._checkpoint_connector
        restore = connector.restore_model

        def restored() -> None:
            before = self._now()
            restore()
            self._restored = _changed(before, self._now())

        connector.restore_model = restored

    def begin_check(self) -> None:
        """Start the sanity check, which only a first segment has."""
        self._first = self._now()

    def end_check(self) -> None:
        """End the sanity check; segments without one start with other attributes."""
        self._checked = _changed(self._first or {}, self._now())
        self._first = None

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore :meth:`state`."""
        self._saved = saved if any(saved.values()) else {}

    def begin(self) -> None:
        """Put saved values back; call when all hooks of the training's start have run."""
        self._first = self._now()
        if not self._saved:
            return
        trainer, each = self._trainer, self._saved["each"]
        own = each[trainer.global_rank if len(each) == trainer.world_size else 0] if each else {}
        modules = dict(trainer.lightning_module.named_modules())
        parameters = dict(trainer.lightning_module.named_parameters())
        for name, node in {**self._saved["all"], **own}.items():
            path, _, attribute = name.rpartition(".")
            if attribute == _TRAINED:
                if path in parameters:
                    parameters[path].requires_grad_(unpacked(node, torch.device("cpu")))
            elif attribute == _SCHEDULER:
                holder, _, attribute = path.rpartition(".")
                scheduler = getattr(modules.get(holder), attribute, None)
                if isinstance(scheduler, LRScheduler):
                    scheduler.load_state_dict(unpacked(node, trainer.strategy.root_device))
            elif path in modules and name not in self._restored:
                held = modules[path].__dict__
                made = unpacked(node, trainer.strategy.root_device)
                held[attribute] = put(made, held.get(attribute))
        self._saved = {}

    def state(self, consensus: Consensus) -> dict[str, Any]:
        """The changed attributes, in plain numbers, texts and tensors; every rank calls it.

        Returns:
            The attributes that all ranks have alike, and those of each rank.
        """
        if self._saved:  # not put back yet
            return dict(self._saved)
        now = self._now()
        first = now if self._first is None else self._first  # none before training has started
        names = _changed(first, now) | (self._checked & now.keys())
        lost = {name for name in names if isinstance(now[name], _Lost)}
        parts = consensus.gather({name: now[name] for name in now if name in names - lost})
        alike = {
            name: node
            for name, node in parts[0].items()
            if all(name in part and same(node, part[name]) for part in parts)
        }
        apart = [name for name in parts[0] if name not in alike]
        self._warn(apart, sorted(lost & first.keys()))
        each = [{name: part[name] for name in apart if name in part} for part in parts]
        return {"all": alike, "each": each if apart else []}

    def _now(self) -> dict[str, Any]:
        module, now = self._trainer.lightning_module, dict[str, Any]()
        elsewhere = {address(one) for one in (*module.parameters(), *module.buffers())} - {0}
        for name, parameter in module.named_parameters():
            now[f"{name}.{_TRAINED}"] = packed(parameter.requires_grad, elsewhere)
        for path, part in module.named_modules():
            if isinstance(part, Metric):
                continue
            of_torch = type(part).__module__.partition(".")[0] == "torch"
            for name, value in vars(part).items():
                if name in _NOT_THE_USERS or (of_torch and name.startswith("_")):
                    continue
                key = f"{path}.{name}" if path else name
                if isinstance(value, LRScheduler):  # a scheduler that Lightning may not know
                    key, value = f"{key}.{_SCHEDULER}", value.state_dict()
                try:
                    now[key] = packed(value, elsewhere)
                except Unpackable:
                    if type(value) in (list, dict, set, deque):
                        now[key] = _Lost(len(value))
        return now

    def _warn(self, apart: Sequence[str], lost: Sequence[str]) -> None:
        if apart and self._should_log("attributes apart"):
            _log.warning(
                "Each of the trial's %d slots keeps attributes of the module (%s) for itself: they"
                " are of its part of the batches, and on another number of slots all go on with"
                " those of the first one. Use a metric, or self.log(..., on_epoch=True).",
                self._trainer.world_size,
                ", ".join(apart),
            )
        saves = is_overridden("on_save_checkpoint", self._trainer.lightning_module)
        if lost and not saves and self._should_log("attributes lost"):
            _log.warning(
                "Attributes of the module (%s) begin again each time that the trial comes back:"
                " they are too large for its checkpoints, or have more in them than numbers, texts"
                " and tensors. Keep them in on_save_checkpoint and on_load_checkpoint, or in"
                " buffers.",
                ", ".join(lost),
            )


class _Lost(int):
    """Replaces a value that cannot be packed: its number of items."""


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    return {name for name in now if name not in before or not same(before[name], now[name])}
