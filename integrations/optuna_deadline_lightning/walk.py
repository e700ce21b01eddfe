"""What a training keeps outside Lightning's checkpoints: one walk captures and restores it.

Lightning's checkpoints have parameters, buffers, and what has a ``state_dict``. A list of losses,
a count, a teacher that is kept in a list, the slow weights of an optimizer, a global variable or
the set of trained parameters would start again in each segment. So whatever has changed since a
segment's first step is saved too, if it consists of numbers, texts and tensors. What has changed
and cannot be saved is named once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import BaseFinetuning, Callback, StochasticWeightAveraging
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from optuna_deadline_torch.consensus import Consensus
from optuna_deadline_torch.sampler import ElasticBatchSampler
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler
from torchmetrics import Metric

from optuna_deadline_lightning.packing import Unpackable, address, packed, put, same, unpacked

_log = logging.getLogger(__name__)

_LIBRARIES = {
    "builtins", "itertools", "lightning", "numpy", "optuna", "optuna_deadline",
    "optuna_deadline_lightning", "optuna_deadline_torch", "pytorch_lightning", "torch",
    "torchmetrics",
}  # fmt: skip
#: Of a trainer, which training may change.
_SETTINGS = {
    "accumulate_grad_batches", "check_val_every_n_epoch", "gradient_clip_val",
    "limit_train_batches", "limit_val_batches",
}  # fmt: skip
_CONTAINERS = (list, tuple, dict, set, deque)
_UPDATES = "_update_count"  # of a metric
_DEEP, _LONG = 4, 1000  # objects within objects, items of a container
_MODULE_BYTES, _BUFFER_BYTES, _DATA_BYTES = 2**30, 2**20, 2**16


@dataclass(frozen=True)
class Place:
    """One value of a training.

    Attributes:
        node: Its plain form; :class:`Lost` if it has none.
        held: The value itself.
        restore: Replaces it.
    """

    node: Any
    held: Any
    restore: Callable[[Any], None]


@dataclass(frozen=True, eq=False)
class Lost:
    """Replaces a value without a plain form.

    Attributes:
        shown: What shows that it has changed.
        held: The value, if only another one shows it.
    """

    shown: Any = None
    held: Any = None

    def __eq__(self, other: object) -> bool:
        """Whether nothing shows a change."""
        if not isinstance(other, Lost):
            return False
        return bool(self.shown == other.shown) and self.held is other.held

    __hash__ = None  # type: ignore[assignment]


class PlainState:
    """The plain values of a trainer's module, data module, callbacks and optimizers.

    Args:
        trainer: The trainer, whose module is attached.
        tells: Whether to log something about a topic.
    """

    def __init__(self, trainer: pl.Trainer, tells: Callable[[str], bool]) -> None:
        self._trainer = trainer
        self._should_log = tells
        self._saved: Mapping[str, Any] = {}
        self._restored: set[str] = set()  # by the module, the data module or a callback
        self._checked: set[str] = set()  # changed by the sanity check
        self._first: dict[str, Any] | None = None  # at this segment's first step
        self._built: dict[str, Any] | None = None  # the structure there

    def watch_restoring(self, restored_weights: Callable[[], None]) -> None:
        """Skip what the user's own hooks restore from the checkpoint.

        Args:
            restored_weights: Called when the weights are restored.
        """
        connector: Any = self._trainer._checkpoint_connector
        restore = connector._restore_modules_and_callbacks

        def restored(*args: Any, **kwargs: Any) -> None:
            before = self._now()
            restore(*args, **kwargs)
            self._restored = _changed(before, self._now())
            restored_weights()

        connector._restore_modules_and_callbacks = restored

    def begin_check(self) -> None:
        """Start the sanity check, which only a first segment has."""
        self._first = self._now()

    def end_check(self) -> None:
        """End the sanity check; segments without one start with other values."""
        self._checked = _changed(self._first or {}, self._now())
        self._first = None

    def changed_structure(self) -> list[str]:
        """What a resumed segment would not build as it is now: layers, optimizers, schedulers."""
        if self._built is None:
            return []
        now = _structure(self._trainer)
        names = [*now, *(self._built.keys() - now.keys())]
        return [name for name in names if now.get(name) != self._built.get(name)]

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore :meth:`state`."""
        self._saved = saved if any(saved.values()) else {}

    def begin(self) -> None:
        """Put saved values back; call when all hooks of the training's start have run."""
        walk = _Walk(self._trainer)
        self._built = _structure(self._trainer)
        self._first = walk.values()
        if not self._saved:
            return
        trainer, each = self._trainer, self._saved["each"]
        own = each[trainer.global_rank if len(each) == trainer.world_size else 0] if each else {}
        for name, node in {**self._saved["all"], **own}.items():
            if name not in self._restored:
                walk.restore(name, unpacked(node, trainer.strategy.root_device))
        self._saved = {}

    def state(self, consensus: Consensus) -> dict[str, Any]:
        """The changed values, in plain numbers, texts and tensors; every rank calls it.

        Returns:
            The values that all ranks have alike, and those of each rank.
        """
        if self._saved:  # not put back yet
            return dict(self._saved)
        now = self._now()
        first = now if self._first is None else self._first  # none before training has started
        names = _changed(first, now) | (self._checked & now.keys())
        lost = {name for name in names if isinstance(now[name], Lost)}
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
        return _Walk(self._trainer).values()

    def _warn(self, apart: Sequence[str], lost: Sequence[str]) -> None:
        if apart and self._should_log("attributes apart"):
            _log.warning(
                "Each of the trial's %d slots keeps attributes of the module (%s) for itself: they"
                " are of its part of the batches, and on another number of slots all go on with"
                " those of the first one. Use a metric, or self.log(..., on_epoch=True).",
                self._trainer.world_size,
                ", ".join(apart),
            )
        if lost and self._should_log("attributes lost"):
            _log.warning(
                "These values start again each time that the trial comes back: %s. They"
                " are too large for its checkpoints, or have more in them than numbers, texts"
                " and tensors. Keep them in on_save_checkpoint and on_load_checkpoint, or in"
                " buffers.",
                ", ".join(lost),
            )


def _structure(trainer: pl.Trainer) -> dict[str, Any]:
    """What a checkpoint's parts must fit, by name, but what Lightning's callbacks build again."""
    found: dict[str, Any] = {
        name: getattr(one, "shape", None)
        for name, one in trainer.lightning_module.state_dict().items()
    }
    restored = {type(one) for one in trainer.callbacks}  # type: ignore[attr-defined]
    for place, optimizer in enumerate(trainer.optimizers):
        groups = [len(group["params"]) for group in optimizer.param_groups]
        grows = any(issubclass(one, BaseFinetuning) for one in restored)
        found[f"optimizer {place}"] = type(optimizer), not grows and groups
    for place, config in enumerate(trainer.lr_scheduler_configs):
        if not any(issubclass(one, StochasticWeightAveraging) for one in restored):
            found[f"scheduler {place}"] = type(config.scheduler)
    return found


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    return {name for name in now if name not in before or not same(before[name], now[name])}


class _Walk:
    """All values of a training by a name that each has in every segment and rank.

    Attributes:
        places: The values.
        holders: The attributes of each object by its name.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.places: dict[str, Place] = {}
        self._data = False  # whether it looks at loaders
        self.holders: dict[str, dict[str, Any]] = {}
        module = trainer.lightning_module
        self._elsewhere = {address(one) for one in (*module.parameters(), *module.buffers())} - {0}
        self._seen = {id(trainer), *map(id, module.modules())}
        for name, parameter in module.named_parameters():
            node, trains = parameter.requires_grad, partial(setattr, parameter, "requires_grad")
            self.places[f"{name}.requires_grad"] = Place(node, node, trains)
        kept = module.state_dict()
        for name, buffer in module.named_buffers():
            if name not in kept:
                self._elsewhere.discard(address(buffer))
                node = self._packed(buffer, _BUFFER_BYTES)
                self.places[name] = Place(node, None, partial(_fill, buffer))
        for path, part in module.named_modules():
            if not isinstance(part, Metric):
                self._attributes(path, part, _OF_MODULES, saves=_saves(module))
        users: dict[str, Any] = {"": module, "datamodule": trainer.datamodule}  # type: ignore[attr-defined]
        for place, one in enumerate(trainer.callbacks):  # type: ignore[attr-defined]
            users[f"{type(one).__qualname__} {place}"] = one
        for path, one in users.items():
            if one is not None and not _of_a_library(type(one)):
                if one is not module:
                    self._attributes(path, one, _OF_DATA, saves=_saves(one))
                self._variables(one)
        for place, one in enumerate(trainer.optimizers):
            self._attributes(f"optimizer {place}", one, _OF_OPTIMIZERS)
        self._attributes("trainer", trainer, _of_trainers())
        if trainer.train_dataloader is not None:
            self._loaders(trainer.train_dataloader)

    def values(self) -> dict[str, Any]:
        """The plain forms."""
        return {name: place.node for name, place in self.places.items()}

    def restore(self, name: str, value: Any) -> None:
        """Replace a value; an attribute may be missing so far."""
        path, _, attribute = name.rpartition(".")
        if (place := self.places.get(name)) is not None:
            place.restore(put(value, place.held))
        elif path in self.holders:
            self.holders[path][attribute] = value

    def _attributes(
        self,
        path: str,
        holder: Any,
        known: frozenset[str] = frozenset(),
        *,
        saves: bool = False,
        depth: int = 0,
    ) -> None:
        """Add the attributes of an object, but those that its class keeps.

        Without a plain form they are left out if the user ``saves`` them himself.
        """
        self._seen.add(id(holder))
        private = type(holder).__module__.partition(".")[0] in ("lightning", "torch")
        held = self.holders[path] = getattr(holder, "__dict__", {})
        for name in _slots(holder):
            self._value(
                f"{path}.{name}", getattr(holder, name), partial(setattr, holder, name), depth
            )
        for name, value in list(held.items()):
            ours = name.startswith("_optuna_deadline")
            if name not in known and not ours and not (private and name.startswith("_")):
                key = f"{path}.{name}" if path else name
                self._value(key, value, partial(held.__setitem__, name), depth, saves=saves)

    def _loaders(self, loaders: Any) -> None:
        """Add what the user's datasets, samplers and functions of training's loaders count."""
        self._data = True
        for place, loader in enumerate(CombinedLoader(loaders).flattened):
            parts = [
                (f"loader {place}.{name}", getattr(loader, name, None))
                for name in ("dataset", "batch_sampler", "sampler", "collate_fn")
            ]
            while parts:
                key, one = parts.pop()
                if isinstance(one, ElasticBatchSampler):
                    parts += [(key, one.batches), (f"{key}.sampler", _sampler(one.batches))]
                elif isinstance(one, FunctionType):
                    self._inside(key, one)
                elif one is not None and id(one) not in self._seen:
                    if isinstance(one, Sampler) or not _of_a_library(type(one)):
                        self._attributes(key, one)
                    within = [getattr(one, "dataset", None), *getattr(one, "datasets", ())]
                    parts += [(f"{key}.{nth}", part) for nth, part in enumerate(within)]

    def _inside(self, key: str, function: FunctionType) -> None:
        """Add what a function keeps: variables around it, changeable defaults, attributes."""
        if id(function) in self._seen or _of_a_library(function):
            return
        self._seen.add(id(function))
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with suppress(ValueError):  # it has no value yet
                put_back = partial(setattr, cell, "cell_contents")
                self._value(f"{key}.{name}", cell.cell_contents, put_back, _DEEP)
        for place, default in enumerate(function.__defaults__ or ()):
            if type(default) in _CONTAINERS:
                self._value(f"{key}({place})", default, lambda _: None, _DEEP)
        self._attributes(key, function, depth=_DEEP)

    def _metrics(self, key: str, module: nn.Module) -> None:
        """Add the states of metrics in a module outside the trained one."""
        for name, one in module.named_modules():
            if isinstance(one, Metric) and id(one) not in self._seen:
                self._seen.add(id(one))
                states = {state: getattr(one, state) for state in one._defaults}
                states[_UPDATES] = int(one._update_count)
                place = Place(self._packed(states), None, vars(one).update)
                self.places[f"{key}.{name}" if name else key] = place

    def _variables(self, holder: Any) -> None:
        """Add the variables of an object's class, and those of its module that methods name."""
        for owner in type(holder).__mro__:
            if _of_a_library(owner):
                continue
            functions = [one for one in vars(owner).values() if isinstance(one, FunctionType)]
            outside: dict[str, Any] = functions[0].__globals__ if functions else {}
            names = {name for one in functions for name in one.__code__.co_names}
            found = [(name, outside, outside.__setitem__) for name in names & outside.keys()]
            own = vars(owner)
            found += [(name, own, partial(setattr, owner)) for name in own if name[:2] != "__"]  # type: ignore[misc]
            for name, held, restore in found:
                key = f"variable {owner.__qualname__ + '.' if held is own else ''}{name}"
                if isinstance(held[name], FunctionType):
                    self._inside(key, held[name])
                elif type(held[name]) in (bool, int, float, str, torch.Tensor, *_CONTAINERS):
                    self._value(key, held[name], partial(restore, name), _DEEP)

    def _value(
        self,
        key: str,
        value: Any,
        restore: Callable[[Any], None],
        depth: int,
        *,
        saves: bool = False,
    ) -> None:
        plain = self._packed(value)
        if isinstance(value, (LRScheduler, nn.Module)):  # which Lightning may not know
            if isinstance(value, nn.Module):
                self._metrics(key, value)
            if id(value) not in self._seen and not isinstance(value, pl.LightningModule):
                self._seen.add(id(value))
                plain = self._packed(dict(value.state_dict()), _MODULE_BYTES)
                self.places[f"{key}.state_dict"] = Place(plain, None, value.load_state_dict)
        elif not isinstance(plain, Lost):
            self.places[key] = Place(plain, value, restore)
        elif type(value) in _CONTAINERS:
            before = len(self.places)
            self._items(key, value, depth)
            if len(self.places) == before and not saves:
                self.places[key] = Place(plain, value, restore)
        elif isinstance(value, torch.Tensor):
            if address(value) not in self._elsewhere and not saves:
                self.places[key] = Place(plain, value, restore)
        elif isinstance(value, Iterator) and _of_a_library(type(value)):
            shown = repr(value)  # has the state of a count, and only the address of a generator
            moved: Any = object() if " at 0x" in shown else shown
            self.places[key] = Place(Lost(moved), value, restore)
        elif (
            depth < _DEEP
            and id(value) not in self._seen
            and not isinstance(value, type)
            and not _of_a_library(type(value))
            and (hasattr(value, "__dict__") or _slots(value))
        ):
            self._attributes(key, value, depth=depth + 1)
        else:
            self.places[key] = Place(plain, value, restore)
            if isinstance(value, FunctionType):
                self._inside(key, value)

    def _items(self, key: str, value: Any, depth: int) -> None:
        if len(value) > _LONG or isinstance(value, set):
            return
        for name, one in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
            if hasattr(one, "__dict__"):  # restored in place
                self._value(f"{key}[{name!r}]", one, lambda _: None, depth + 1)

    def _packed(self, value: Any, most: int | None = None) -> Any:
        try:
            return packed(value, self._elsewhere, _DATA_BYTES if self._data else most)
        except Unpackable:  # of data, whose objects may be made anew in each epoch
            if isinstance(value, torch.Tensor):
                return Lost((0 if self._data else id(value), value._version))
            if type(value) in _CONTAINERS:
                return Lost(len(value))
            return Lost(held=None if self._data else value)


def _saves(one: Any) -> bool:
    """Whether the user saves its state in a hook."""
    if isinstance(one, pl.LightningModule):
        return is_overridden("on_save_checkpoint", one)
    base: Any = Callback if isinstance(one, Callback) else pl.LightningDataModule
    hooks = [hook for hook in ("state_dict", "on_save_checkpoint") if hasattr(base, hook)]
    return any(getattr(type(one), hook) is not getattr(base, hook) for hook in hooks)


def _fill(tensor: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(value)


def _sampler(batches: Any) -> Any:
    return getattr(batches, "sampler", None)


def _slots(one: Any) -> list[str]:
    """The attributes that are not in its ``__dict__``."""
    declared = [getattr(kind, "__slots__", ()) for kind in type(one).__mro__]
    names = [name for each in declared for name in ((each,) if isinstance(each, str) else each)]
    return [name for name in names if name[:2] != "__" and hasattr(one, name)]


def _of_a_library(kind: type | FunctionType) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES


_OF_MODULES = frozenset(vars(pl.LightningModule()))
_OF_DATA = frozenset(vars(pl.LightningDataModule()))
_OF_OPTIMIZERS = frozenset({"defaults", "state", "param_groups"})


@lru_cache(1)
def _of_trainers() -> frozenset[str]:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return frozenset(vars(pl.Trainer(accelerator="cpu", **quiet))) - _SETTINGS  # type: ignore[arg-type]
