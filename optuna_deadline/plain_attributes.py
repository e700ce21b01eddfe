"""Plain attributes that a framework does not save, such as the patience of a callback."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

from optuna_deadline.errors import DeadlineError
from optuna_deadline.plain_data import decoded, encoded, imported, put_back

_FUNCTION = "function"  # the key under which its name is saved


class PlainAttributes:
    """What training changes in the attributes of some objects.

    Functions are kept by their names. Attributes with more in them than plain data are left alone.

    Args:
        objects: The objects, in the same order in each segment, as they are at its start.
        known: Names of attributes that the framework sets itself.
    """

    def __init__(self, objects: Iterable[Any], known: Collection[str] = ()) -> None:
        self._objects = {
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
        for name, node in saved.items():
            path, _, attribute = name.rpartition(".")
            if (one := self._objects.get(path)) is not None:
                old = getattr(one, attribute, None)
                if isinstance(node, dict) and node.keys() == {_FUNCTION}:
                    found = imported(*node[_FUNCTION])
                    new = found if isinstance(found, FunctionType) else old
                else:
                    new = put_back(old, decoded(node))
                setattr(one, attribute, new)
                self._kept.add(name)

    def _values(self) -> Iterator[tuple[str, Any]]:
        for path, one in self._objects.items():
            for name, value in list(vars(one).items()):
                if name not in self._known:
                    try:
                        yield f"{path}.{name}", _plain(value, name)
                    except DeadlineError:
                        continue


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, FunctionType):
        place = value.__module__, value.__qualname__
        if imported(*place) is value:
            return {_FUNCTION: [*place]}
    return encoded(value, name)


def _digest(node: Any) -> bytes:
    return hashlib.blake2b(pickle.dumps(node)).digest()
