"""Plain attributes that a framework does not save, such as the patience of a callback."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

from optuna_deadline.errors import DeadlineError
from optuna_deadline.plain_data import (
    decoded,
    encoded,
    generator_of,
    imported,
    is_installed,
    put_back,
)

#: The keys under which the name of a function, and the state of a generator are saved.
_FUNCTION, _GENERATOR = "<function>", "<generator>"
_OTHERS: dict[str, Any] = {f"<{one.__name__}>": one for one in (deque, set, defaultdict)}
_DEEP = 3  # objects within objects


class PlainAttributes:
    """What training changes in the attributes of some objects.

    Functions are kept by their names, random generators by their states, and objects of the user's
    by their attributes. Attributes with more in them than plain data are left alone.

    Args:
        objects: The objects, in the same order in each segment, as they are at its start.
        known: Names of attributes that the framework sets itself.
    """

    def __init__(self, objects: Iterable[Any], known: Collection[str] = ()) -> None:
        self._roots = {
            f"{type(one).__qualname__} {place}": one for place, one in enumerate(objects)
        }
        self._known = known
        self._kept: set[str] = set()  # names of what was restored
        self._first = {name: _digest(node) for name, node in self._values()}

    def changed(self) -> dict[str, Any]:
        """The values that this segment or one before it has changed, as plain data by name."""
        return {
            name: node
            for name, node in self._values()
            if name in self._kept or self._first.get(name) != _digest(node)
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore :meth:`changed`."""
        objects = dict(self._objects())
        for name, node in saved.items():
            path, _, attribute = name.rpartition(".")
            if (one := objects.get(path)) is not None:
                setattr(one, attribute, _restored(getattr(one, attribute, None), node))
                self._kept.add(name)

    def _objects(self) -> Iterator[tuple[str, Any]]:
        """The objects, and those of the user's within them, each once."""
        left = [(path, one, 0) for path, one in self._roots.items()]
        seen = {id(one) for one in self._roots.values()}
        while left:
            path, one, depth = left.pop(0)
            yield path, one
            for name, part in vars(one).items() if depth < _DEEP else ():
                if id(part) not in seen and name not in self._known and _is_users(type(part)):
                    seen.add(id(part))
                    left.append((f"{path}.{name}", part, depth + 1))

    def _values(self) -> Iterator[tuple[str, Any]]:
        for path, one in self._objects():
            for name, value in list(vars(one).items()):
                if name not in self._known:
                    try:
                        yield f"{path}.{name}", _plain(value, name)
                    except DeadlineError:
                        continue


def _is_users(kind: type) -> bool:
    root = kind.__module__.partition(".")[0]
    users = root not in sys.stdlib_module_names and not is_installed(root)
    return users and root != "optuna_deadline" and not hasattr(kind, "__slots__")


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, FunctionType) and _named(value) is value:
        return {_FUNCTION: [value.__module__, value.__qualname__]}
    if (generator := generator_of(value)) is not None:
        return {_GENERATOR: encoded(generator[0](), name)}
    kind = f"<{type(value).__name__}>"
    if _OTHERS.get(kind) is type(value):
        items: Any = {**value} if kind == "<defaultdict>" else [*value]
        return {kind: encoded(sorted(items, key=repr) if kind == "<set>" else items, name)}
    return encoded(value, name)


def _named(function: FunctionType) -> Any:
    return imported(function.__module__, function.__qualname__)


def _restored(old: Any, node: Any) -> Any:
    """The value of a plain form, in the old object if possible."""
    kind, held = (
        next(iter(node.items())) if isinstance(node, dict) and len(node) == 1 else ("", ())
    )
    if kind == _FUNCTION:
        found = imported(*held)
        return found if isinstance(found, FunctionType) else old
    if kind == _GENERATOR:
        return put_back(old, decoded(held))
    if kind in _OTHERS:
        if type(old) is _OTHERS[kind]:  # its greatest length or default is not saved
            old.clear()
            (old.extend if isinstance(old, deque) else old.update)(decoded(held))
        return old
    return put_back(old, decoded(node))


def _digest(node: Any) -> bytes:
    return hashlib.blake2b(pickle.dumps(node)).digest()
