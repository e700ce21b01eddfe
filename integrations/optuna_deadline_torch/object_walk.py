"""A walk over objects: each value that training may change by a name of its own."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from optuna_deadline.optimizer_state import load_in_place
from optuna_deadline_torch.data_digest import data_digest
from optuna_deadline_torch.packing import Unpackable, address, packed, put, unpacked
from optuna_deadline_torch.user_code import (
    CALLABLES,
    UserCode,
    is_of_any_library,
    is_of_library,
    unwrapped,
)

_AT = "at"  # the path of an object that the walk has already found
_CONTAINERS = (list, tuple, dict, set, deque)
_STATEFUL = (GradScaler, LRScheduler, Optimizer, nn.Module)
_OF_TORCH = (ConcatDataset, Subset, TensorDataset)
#: Of classes and files.
_VARIABLES = (bool, int, float, str, torch.Tensor, np.ndarray, *_CONTAINERS)
_UPDATES = "_update_count"  # of a metric
_DEEP, _NEAR = 10, 8  # objects within objects; where those within a function begin
_LONG, _FEW = 1000, 64  # items of a container, of one in data
_MODULE_BYTES, _DATA_BYTES = 2**30, 2**16


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


class ObjectWalk:
    """Values by a name that each has in every segment and rank.

    Args:
        users: Tells the user's own code.

    Attributes:
        of_modules: Attributes that a library keeps in a module.
        foreign: Modules whose states a library keeps.
        places: The values.
        holders: By the name of an object, class or file, what sets an attribute there.
    """

    of_modules: frozenset[str] = frozenset(vars(nn.Module()))
    foreign: tuple[type, ...] = ()

    def __init__(self, users: UserCode) -> None:
        self.places: dict[str, Place] = {}
        self.holders: dict[str, Callable[[str, Any], None]] = {}
        self._users = users
        self._data = False  # whether it looks at data, which may be large
        self._elsewhere: set[int] = set()  # the addresses of what checkpoints hold elsewhere
        self._seen: set[int] = set()
        self._paths: dict[int, str] = {}  # of objects of the user's own
        self._objects: dict[str, Any] = {}
        # Code whose global variables are still to be added, with those of its file.
        self._code: list[tuple[CodeType, dict[str, Any]]] = []

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
        for mapping, items in self._mappings(holder).items():
            for name, value in items.items():
                put_back = partial(items.__setitem__, name)
                self._value(f"{path}.{mapping}[{name!r}]", value, put_back, depth, saves=saves)
        for name in _slots(holder):
            self._value(
                f"{path}.{name}",
                getattr(holder, name),
                partial(object.__setattr__, holder, name),  # also if it is frozen
                depth,
            )
        for name, value in list(held.items()):
            ours = name.startswith("_optuna_deadline")
            if name not in known and not ours and not (private and name.startswith("_")):
                key = f"{path}.{name}" if path else name
                self._value(key, value, partial(held.__setitem__, name), depth, saves=saves)

    def _mappings(self, holder: Any) -> dict[str, MutableMapping[str, Any]]:
        """By name, what an object keeps in a mapping that is no plain one."""
        return {}

    def _inside(self, key: str, function: FunctionType) -> None:
        """Add what a function keeps: variables around it, changeable defaults, attributes."""
        if id(function) in self._seen or is_of_library(function):
            return
        self._seen.add(id(function))
        self._code.append((function.__code__, function.__globals__))
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with suppress(ValueError):  # it has no value yet
                put_back = partial(setattr, cell, "cell_contents")
                self._value(f"{key}.{name}", cell.cell_contents, put_back, _NEAR)
        for place, default in enumerate(function.__defaults__ or ()):
            if type(default) in _CONTAINERS:
                self._value(f"{key}({place})", default, nothing, _DEEP)
        self._attributes(key, function, depth=_DEEP)

    def _metrics(self, key: str, parts: Mapping[str, Any]) -> None:
        """Add the states of metrics among the parts of a module outside the trained one."""
        for name, one in parts.items():
            if is_metric(one) and id(one) not in self._seen:
                self._seen.add(id(one))
                states = {state: getattr(one, state) for state in one._defaults}
                states[_UPDATES] = int(one._update_count)
                place = Place(self._packed(states), None, vars(one).update)
                self.places[f"{key}.{name}" if name else key] = place

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
            for held, name in self._users.variables(*self._code.pop()):
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
        if isinstance(value, _STATEFUL):  # which no checkpoint may know
            parts = dict(value.named_modules()) if isinstance(value, nn.Module) else {}
            self._metrics(key, parts)
            if id(value) not in self._seen and not isinstance(value, self.foreign):
                self._seen.add(id(value))
                plain = self._packed(dict(value.state_dict()), _MODULE_BYTES)
                load: Callable[[Any], Any] = value.load_state_dict
                if isinstance(value, Optimizer):
                    load = partial(load_in_place, value)
                self.places[f"{key}.state_dict"] = Place(plain, None, load)
                for name, part in parts.items():
                    if part is value or id(part) not in self._seen:
                        self._attributes(f"{key}.{name}", part, self.of_modules, depth=_DEEP)
        elif not isinstance(plain, Lost):
            self.places[key] = Place(plain, value, restore)
        elif type(value) in _CONTAINERS:
            found = self._items(key, value, depth)
            if not saves:
                self.places[key] = Place(Lost(len(value)) if found else plain, value, restore)
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
            self._value(f"{key}({name})", one, nothing, depth + 1)

    def _items(self, key: str, value: Any, depth: int) -> bool:
        """Add the items of a container with more in it than plain data, unless they are many."""
        if len(value) > (_FEW if self._data else _LONG) or isinstance(value, set):
            return False  # samples may be many objects
        for name, one in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
            in_place = partial(fill, one) if isinstance(one, torch.Tensor) else nothing
            restore = in_place if isinstance(value, tuple) else partial(value.__setitem__, name)
            self._value(f"{key}[{name!r}]", one, restore, depth + 1)
        return True

    def _packed(self, value: Any, most: int | None = None) -> Any:
        try:
            return packed(value, self._elsewhere, _DATA_BYTES if self._data else most)
        except Unpackable:  # of data, whose objects may be made anew in each epoch
            if isinstance(value, torch.Tensor):
                return Lost((0 if self._data else id(value), value._version))
            if type(value) in _CONTAINERS:
                return Lost(_shown(value))
            return Lost(held=None if self._data else value)


def is_metric(one: Any) -> bool:
    """Whether it is a metric of torchmetrics."""
    library = sys.modules.get("torchmetrics")
    return library is not None and isinstance(one, library.Metric)


def fill(tensor: torch.Tensor, value: torch.Tensor) -> None:
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


def nothing(value: Any) -> None:
    """Replace nothing: the value was restored in place."""
