"""One walk over all that a training keeps outside Lightning's checkpoints, by name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.core.mixins.hparams_mixin import HyperparametersMixin
from lightning.pytorch.utilities.model_helpers import is_overridden
from optuna_deadline_torch.data_digest import data_digest
from optuna_deadline_torch.sampler import ElasticBatchSampler
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import ConcatDataset, Sampler, Subset, TensorDataset
from torchmetrics import Metric

from optuna_deadline_lightning.packing import Unpackable, address, packed, put, unpacked
from optuna_deadline_lightning.user_code import (
    CALLABLES,
    UserCode,
    is_of_any_library,
    is_of_library,
    unwrapped,
)

#: Of a trainer, which training may change.
_SETTINGS = {
    "accumulate_grad_batches", "check_val_every_n_epoch", "gradient_clip_val",
    "limit_train_batches", "limit_val_batches",
}  # fmt: skip
#: The functions that are called in the passes of a module and of a parameter.
_OF_PASSES = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_OF_GRADIENTS = "_backward_hooks", "_post_accumulate_grad_hooks"
_AT = "at"  # the path of an object that the walk has already found
_CONTAINERS = (list, tuple, dict, set, deque)
LIMITS = "trainer.max_epochs", "trainer.max_steps"
_STATEFUL = (GradScaler, LRScheduler, Optimizer, nn.Module)
_OF_TORCH = (ConcatDataset, Subset, TensorDataset)
#: Of classes and files.
_VARIABLES = (bool, int, float, str, torch.Tensor, np.ndarray, *_CONTAINERS)
_UPDATES = "_update_count"  # of a metric
_DEEP, _NEAR = 10, 8  # objects within objects; where those within a function begin
_LONG, _FEW = 1000, 64  # items of a container, of one in data
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


class Walk:
    """All values of a training by a name that each has in every segment and rank.

    Args:
        trainer: The trainer of the training; None for its data alone.
        loaders: The loaders of its training data.

    Attributes:
        places: The values.
        holders: By the name of an object, class or file, what sets an attribute there.
    """

    def __init__(self, trainer: pl.Trainer | None, loaders: Sequence[Any] = ()) -> None:
        self.places: dict[str, Place] = {}
        self._data = False  # whether it looks at loaders
        self.holders: dict[str, Callable[[str, Any], None]] = {}
        self._elsewhere: set[int] = set()  # the addresses of what Lightning's checkpoints hold
        self._seen: set[int] = set()
        self._paths: dict[int, str] = {}  # of objects of the user's own
        self._objects: dict[str, Any] = {}
        self._users = UserCode(
            getattr(trainer, "lightning_module", 0), getattr(trainer, "datamodule", 0)
        )
        self._code: list[FunctionType] = []  # whose global variables are still to be added
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
                self.places[name] = Place(node, None, partial(_fill, buffer))
        for path, part in module.named_modules():
            node = modes.get(path, part.training)
            self.places[f"{path}.training"] = Place(node, node, partial(setattr, part, "training"))
            self._hooks(path, part, _OF_PASSES)
            if not isinstance(part, Metric):
                self._attributes(path, part, _OF_MODULES, saves=_saves(module))
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

    def values(self) -> dict[str, Any]:
        """The plain forms."""
        return {name: place.node for name, place in self.places.items()}

    def restore(self, name: str, node: Any, device: torch.device) -> None:
        """Replace a value by a plain form; an attribute may be missing so far."""
        path, _, attribute = name.rpartition(".")
        if known := isinstance(node, list) and node[0] == _AT:
            if node[1] not in self._objects:
                return
            value = self._objects[node[1]]
        else:
            value = unpacked(node, device)
        if (place := self.places.get(name)) is not None:
            place.restore(value if known else put(value, place.held))
        elif path in self.holders:
            self.holders[path](attribute, value)

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
        self._paths.setdefault(id(holder), path)
        self._objects.setdefault(path, holder)
        self._class(type(holder))
        private = type(holder).__module__.partition(".")[0] in ("lightning", "torch")
        held = getattr(holder, "__dict__", {})
        self.holders[path] = held.__setitem__
        for name in _slots(holder):
            self._value(
                f"{path}.{name}",
                getattr(holder, name),
                partial(object.__setattr__, holder, name),  # also if it is frozen
                depth,
            )
        if isinstance(holder, HyperparametersMixin):
            for name, value in holder.hparams.items():
                put_back = partial(holder.hparams.__setitem__, name)
                self._value(f"{path}.hparams[{name!r}]", value, put_back, depth, saves=saves)
        for name, value in list(held.items()):
            ours = name.startswith("_optuna_deadline")
            if name not in known and not ours and not (private and name.startswith("_")):
                key = f"{path}.{name}" if path else name
                self._value(key, value, partial(held.__setitem__, name), depth, saves=saves)

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

    def _inside(self, key: str, function: FunctionType) -> None:
        """Add what a function keeps: variables around it, changeable defaults, attributes."""
        if id(function) in self._seen or is_of_library(function):
            return
        self._seen.add(id(function))
        self._code.append(function)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with suppress(ValueError):  # it has no value yet
                put_back = partial(setattr, cell, "cell_contents")
                self._value(f"{key}.{name}", cell.cell_contents, put_back, _NEAR)
        for place, default in enumerate(function.__defaults__ or ()):
            if type(default) in _CONTAINERS:
                self._value(f"{key}({place})", default, _nothing, _DEEP)
        self._attributes(key, function, depth=_DEEP)

    def _metrics(self, key: str, parts: Mapping[str, nn.Module]) -> None:
        """Add the states of metrics among the parts of a module outside the trained one."""
        for name, one in parts.items():
            if isinstance(one, Metric) and id(one) not in self._seen:
                self._seen.add(id(one))
                states = {state: getattr(one, state) for state in one._defaults}
                states[_UPDATES] = int(one._update_count)
                place = Place(self._packed(states), None, vars(one).update)
                self.places[f"{key}.{name}" if name else key] = place

    def _hooks(self, key: str, one: nn.Module | torch.Tensor, kinds: Sequence[str]) -> None:
        for kind in kinds:
            for place, hook in enumerate((getattr(one, kind, None) or {}).values()):
                self._value(f"{key}.{kind}[{place}]", hook, _nothing, 0)

    def _class(self, kind: type) -> None:
        """Add the variables of a user's class, and what its methods keep."""
        for owner in kind.__mro__:
            if id(owner) not in self._seen and self._users.has(owner):
                self._seen.add(id(owner))
                path = f"variable {owner.__module__}.{owner.__qualname__}"
                self.holders[path] = partial(setattr, owner)
                for name, value in list(vars(owner).items()):
                    self._variable(path, name, unwrapped(value))

    def _globals(self) -> None:
        """Add the global variables that the user's functions name, and functions named there."""
        while self._code:
            for held, name in self._users.variables(self._code.pop()):
                path = f"variable {held['__name__']}"
                self.holders[path] = held.__setitem__
                self._variable(path, name, held[name])

    def _variable(self, path: str, name: str, value: Any) -> None:
        key, restore = f"{path}.{name}", partial(self.holders[path], name)
        if isinstance(value, CALLABLES):
            if not isinstance(value, FunctionType) or self._users.has(value):
                self._called(key, value, _NEAR)
        elif isinstance(value, type):
            self._class(value)
        elif type(value) in _VARIABLES or isinstance(value, Enum):
            if name[:2] != "__":
                self._value(key, value, restore, _DEEP)
        elif self._users.has(type(value)) and not isinstance(value, nn.Module):
            before, self._data = self._data, True  # it may be as large as data
            self._value(key, value, restore, 0)
            self._data = before

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
        if isinstance(value, _STATEFUL):  # which Lightning may not know
            parts = dict(value.named_modules()) if isinstance(value, nn.Module) else {}
            self._metrics(key, parts)
            if id(value) not in self._seen and not isinstance(value, pl.LightningModule):
                self._seen.add(id(value))
                plain = self._packed(dict(value.state_dict()), _MODULE_BYTES)
                load: Callable[[Any], Any] = value.load_state_dict
                if isinstance(value, Optimizer):
                    load = partial(_load_in_place, value)
                self.places[f"{key}.state_dict"] = Place(plain, None, load)
                for name, part in parts.items():
                    if part is value or id(part) not in self._seen:
                        self._attributes(f"{key}.{name}", part, _OF_MODULES, depth=_DEEP)
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
        elif isinstance(value, CALLABLES) and id(value) not in self._paths:
            self.places[key] = Place(plain, value, restore)
            self._called(key, value, depth)
        elif isinstance(value, Iterator) and is_of_library(type(value)):
            shown = repr(value)  # has the state of a count, and only the address of a generator
            moved: Any = object() if " at 0x" in shown else shown
            self.places[key] = Place(Lost(moved), value, restore)
        elif (
            depth < _DEEP
            and id(value) not in self._seen
            and not isinstance(value, (type, Enum))
            and self._has_attributes(value)
            and (hasattr(value, "__dict__") or _slots(value))
        ):
            self.places[key] = Place(Lost(type(value)), value, restore)
            self._attributes(key, value, depth=depth + 1)
        elif id(value) in self._paths:  # it has another name, too, and that one may change
            self.places[key] = Place([_AT, self._paths[id(value)]], value, restore)
        else:
            self.places[key] = Place(plain, value, restore)

    def _has_attributes(self, value: Any) -> bool:
        """Whether to look at the attributes of an object."""
        known = is_of_any_library if self._data else is_of_library
        return isinstance(value, _OF_TORCH) or not known(type(value))

    def _called(self, key: str, value: Any, depth: int) -> None:
        """Add what a function keeps, and what it was bound to."""
        bound: list[tuple[Any, Any]] = []
        if isinstance(value, FunctionType):
            self._inside(key, value)
        elif isinstance(value, MethodType):
            bound = [("self", value.__self__)] if self._users.has(type(value.__self__)) else []
        else:
            bound = [("func", value.func), *enumerate(value.args), *value.keywords.items()]
        for name, one in bound:  # restored in place
            self._value(f"{key}({name})", one, _nothing, depth + 1)

    def _items(self, key: str, value: Any, depth: int) -> None:
        if len(value) > (_FEW if self._data else _LONG) or isinstance(value, set):
            return  # samples may be many objects
        for name, one in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
            if hasattr(one, "__dict__"):
                tensor = partial(_fill, one) if isinstance(one, torch.Tensor) else _nothing
                restore = tensor if type(value) is tuple else partial(value.__setitem__, name)
                self._value(f"{key}[{name!r}]", one, restore, depth + 1)

    def _packed(self, value: Any, most: int | None = None) -> Any:
        try:
            return packed(value, self._elsewhere, _DATA_BYTES if self._data else most)
        except Unpackable:  # of data, whose objects may be made anew in each epoch
            if isinstance(value, torch.Tensor):
                return Lost((0 if self._data else id(value), value._version))
            if type(value) in _CONTAINERS:
                return Lost(_shown(value))
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


def _slots(one: Any) -> list[str]:
    """The attributes that are not in its ``__dict__``."""
    return [name for name in _declared(type(one)) if hasattr(one, name)]  # type: ignore[arg-type]


@lru_cache(maxsize=1000)
def _declared(kind: type) -> tuple[str, ...]:
    declared = [getattr(base, "__slots__", ()) for base in kind.__mro__]
    names = [name for each in declared for name in ((each,) if isinstance(each, str) else each)]
    return tuple(name for name in names if name[:2] != "__")


def _shown(value: Any) -> Any:
    """What shows that a large container has changed: its length, numbers, versions of tensors."""
    versions = [one._version for one in islice(value, _LONG) if isinstance(one, torch.Tensor)]
    return len(value), data_digest(value, 0), versions


def _load_in_place(optimizer: Optimizer, state: Any) -> None:
    """Restore an optimizer whose groups another one may share."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({name: one for name, one in saved.items() if name != "params"})
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for place, one in state["state"].items():
        optimizer.state[parameters[place]] = one


def _nothing(value: Any) -> None:
    """Replace nothing: the value was restored in place."""


_OF_MODULES = frozenset(vars(pl.LightningModule()))
_OF_DATA = frozenset(vars(pl.LightningDataModule()))
_OF_OPTIMIZERS = frozenset({"defaults", "state", "param_groups"})


@lru_cache(1)
def _of_trainers() -> frozenset[str]:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return frozenset(vars(pl.Trainer(accelerator="cpu", **quiet))) - _SETTINGS  # type: ignore[arg-type]
