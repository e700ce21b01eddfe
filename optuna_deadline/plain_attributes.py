"""Plain attributes that a framework does not save, such as the patience of a callback."""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from optuna_deadline.callers import global_variables, is_of_library
from optuna_deadline.errors import DeadlineError
from optuna_deadline.plain_data import (
    decoded,
    encoded,
    generator_of,
    imported,
    put_back,
)

_logger = logging.getLogger("optuna_deadline")

#: The keys under which the name of a function, and the state of a generator are saved.
_FUNCTION, _GENERATOR = "<function>", "<generator>"
_OPAQUE = object()  # in the place of what is saved, where a value is no plain data
_DEEP = 3  # objects within objects
_FEW = 5  # names in a sentence
_MANY = 1000  # in a container, beyond which they are data
_COUNTS_BYTES = 10**6  # a larger array around a function is data


class PlainAttributes:
    """What training changes in the attributes of some objects.

    Functions are kept by their names, random generators by their states, and objects of the user's
    by their attributes. So are the variables around a function of the user's, such as a list that
    it fills. Attributes with more in them than plain data are left alone.

    Args:
        objects: The objects, in the same order in each segment, as they are at its start.
        known: Names of attributes that the framework sets itself.
        with_globals: Whether variables of the user's classes, and of files that their code and
            functions name, are among them.
    """

    def __init__(
        self,
        objects: Iterable[Any],
        known: Collection[str] = (),
        *,
        with_globals: bool = False,
    ) -> None:
        self._with_globals = with_globals
        self._roots = {
            f"{type(one).__qualname__} {place}": one
            for place, one in enumerate(map(owner_of, objects))
        }
        self._known = known
        self._kept: set[str] = set()  # names of what was restored
        self._lost: list[str] = []
        self._opaque: dict[str, Any] = {}
        self._first: dict[str, bytes] = {}
        for _, name, value, node in self._values():
            if node is _OPAQUE:
                self._opaque[name] = value, _length(value)
            else:
                self._first[name] = _digest(node)

    def changed(self) -> dict[str, Any]:
        """The values that this segment or one before it has changed, as plain data by name."""
        found, self._lost = {}, []
        for one, name, value, node in self._values():
            if node is not _OPAQUE:
                if name in self._kept or self._first.get(name) != _digest(node):
                    found[name] = node
            elif is_users(one) or isinstance(one, _SHARED):
                first, length = self._opaque.get(name, (None, 0))
                if value is not first or length != _length(value) or is_moving(value):
                    self._lost.append(name)
        return found

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore :meth:`changed`."""
        objects = dict(self._objects())
        for name, node in saved.items():
            path, _, attribute = name.rpartition(".")
            if (one := objects.get(path)) is not None:
                _set(one, attribute, _restored(_held(one).get(attribute), node))
                self._kept.add(name)

    def lost(self) -> list[str]:
        """What training had replaced or filled in the user's objects, and is no plain data.

        As of the last :meth:`changed`.
        """
        return self._lost

    def warn(self) -> bool:
        """Log the names of :meth:`lost`; returns whether there are any."""
        if lost := self._lost:
            _logger.warning(
                "A pause loses what training keeps in %s: keep numbers, texts, arrays, or "
                "containers of these.",
                ", ".join(lost[:_FEW]),
            )
        return bool(lost)

    def _objects(self) -> Iterator[tuple[str, Any]]:
        """The objects, and those of the user's within them, each once."""
        left = [(path, one, 0) for path, one in self._roots.items()]
        seen = {id(one) for one in self._roots.values()}
        while left:
            path, one, depth = left.pop(0)
            yield path, one
            for name, part in _code_of(one) if self._with_globals else ():
                if id(part) not in seen:
                    if not isinstance(part, _File):  # which is new each time
                        seen.add(id(part))
                    left.append((f"{path}.{name}", part, depth))
            held = _held(one).items() if depth < _DEEP else ()
            for name, value in held:
                for place, part in enumerate(_parts(value)):
                    new = id(part) not in seen and name not in self._known
                    if new and is_users(part):
                        seen.add(id(part))
                        inner = f"{path}.{name}" if part is value else f"{path}.{name}[{place}]"
                        left.append((inner, part, depth + 1))

    def _values(self) -> Iterator[tuple[Any, str, Any, Any]]:
        """Each object's values by their names, and what is saved of them."""
        for path, one in self._objects():
            for name, value in _held(one).items():
                if name not in self._known:
                    node = _OPAQUE
                    if not (isinstance(one, _SHARED) and _is_data(value)):
                        with suppress(DeadlineError):
                            node = _plain(value, name)
                    yield one, f"{path}.{name}", value, node


def _parts(value: Any) -> list[Any]:
    """What may be an object of the user's: the value, or the items of a container."""
    found: Iterable[Any] = [value]
    if isinstance(value, (list, tuple, dict)) and len(value) <= _MANY:
        found = value.values() if isinstance(value, dict) else value
    return [owner_of(one) for one in found]


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple, dict, set, deque)) else 0


def owner_of(one: Any) -> Any:
    """What holds the variables of a bound method or a function with arguments."""
    if isinstance(one, partial):
        return owner_of(one.func)
    return one.__self__ if isinstance(one, MethodType) else one


def is_moving(value: Any) -> bool:
    """Whether it is an iterator, of which nothing tells how far it has come."""
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase)


def is_users(one: Any) -> bool:
    """Whether an object with attributes, or a function, is of the user's own code."""
    of = one if isinstance(one, FunctionType) else type(one)
    has_attributes = hasattr(one, "__dict__") and not hasattr(of, "__slots__")
    return has_attributes and not is_of_library(of.__module__ or "builtins")


class _File:
    """The global variables that a function names.

    Attributes:
        held: Each by its file's, and its name there.
    """

    def __init__(self, function: FunctionType) -> None:
        code, outside = function.__code__, function.__globals__
        self.held = {name: held for held, name in global_variables(code, outside)}


_SHARED = (_File, type)  # their variables may be data that training only reads


def _is_data(value: Any) -> bool:
    """Whether it is large, so that looking at all of it takes time."""
    held = value.values() if isinstance(value, dict) else value
    parts = held if isinstance(value, (list, tuple, dict)) and len(value) <= _MANY else ()
    large = any(getattr(one, "nbytes", 0) > _COUNTS_BYTES for one in (value, *parts))
    return large or _length(value) > _MANY


def _code_of(one: Any) -> Iterator[tuple[str, Any]]:
    """The user's classes of an object, the functions of a class, the file of a function."""
    if isinstance(one, type):
        yield from (
            (key, each) for key, each in vars(one).items() if isinstance(each, FunctionType)
        )
    elif isinstance(one, FunctionType):
        if is_users(one):
            yield "__globals__", _File(one)
    elif is_users(one):
        for kind in type(one).__mro__:
            if not is_of_library(kind.__module__):
                yield kind.__qualname__, kind


def _held(one: Any) -> dict[str, Any]:
    """The attributes of an object or a class; the variables around a function, or of its file."""
    if isinstance(one, _File):
        return {name: held[name] for name, held in one.held.items()}
    if isinstance(one, type):
        own = {key: each for key, each in vars(one).items() if key[:2] != "__"}
        return {key: each for key, each in own.items() if not hasattr(each, "__get__")}
    if not isinstance(one, FunctionType):
        return dict(vars(one))
    held = held_around(one)
    return {n: each for n, each in held.items() if getattr(each, "nbytes", 0) <= _COUNTS_BYTES}


def held_around(one: FunctionType) -> dict[str, Any]:
    """The variables around a function."""
    held = {}
    for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
        with suppress(ValueError):  # one that has no value yet
            held[name] = cell.cell_contents
    return held


def _set(one: Any, name: str, value: Any) -> None:
    if isinstance(one, FunctionType):
        cells = dict(zip(one.__code__.co_freevars, one.__closure__ or (), strict=True))
        cells[name].cell_contents = value
    elif isinstance(one, _File):
        one.held[name][name] = value
    else:
        setattr(one, name, value)


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, FunctionType) and _named(value) is value:
        return {_FUNCTION: [value.__module__, value.__qualname__]}
    if (generator := generator_of(value)) is not None:
        return {_GENERATOR: encoded(generator[0](), name)}
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
    return put_back(old, decoded(node))


def _digest(node: Any) -> bytes:
    return hashlib.blake2b(pickle.dumps(node)).digest()


def digest_of(value: Any) -> bytes | None:
    """What tells plain data from others; None for anything else."""
    try:
        return _digest(_plain(value, ""))
    except DeadlineError:
        return None
