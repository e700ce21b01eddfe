"""What the code around a loop keeps in variables of its own, which restart after a pause."""

from __future__ import annotations

import logging
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from optuna_deadline.callers import global_variables, is_of_library, users_frame
from optuna_deadline.plain_attributes import (
    digest_of,
    held_around,
    is_moving,
    is_users,
    owner_of,
)
from optuna_deadline.plain_data import has_state

_logger = logging.getLogger("optuna_deadline")

_ITEM = re.compile(r"(\[[^.]*\])+$")
_OURS = "optuna_deadline"  # how the names of this package's modules begin
_DEEP = 4  # objects and functions within each other
_FEW = 5  # names in a sentence
_MANY = 1000  # in a container, beyond which they are data
_COUNTS_BYTES, _DATA_BYTES = 10**6, 2**26  # between them, an array is compared by a checksum
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class LoopVariables:
    """The variables around a loop, and what their objects, functions and iterators keep.

    Those of data, such as a dataset, are its numbers and texts. Objects that have a ``state_dict``
    are left alone.

    Args:
        saved: Returns the values that checkpoints hold.
        with_globals: Whether global variables and those of classes are among them.
    """

    def __init__(self, saved: Callable[[], Iterable[Any]], *, with_globals: bool = True) -> None:
        self._saved, self._with_globals, self._frame = saved, with_globals, users_frame()
        self._first = dict(self._found())

    def changed(self) -> list[str]:
        """The names of those that training has changed, and not only set anew."""
        held = {} if self._frame is None else self._frame.f_locals
        names = {
            _ITEM.sub("", name)  # of the container in the place of its items
            for name, shown in self._found()
            if shown is not None
            and shown != self._first.get(name)
            and (name in self._first or name.rpartition(".")[0] in self._first)
        }
        return sorted(name for name in names if name not in held or not self._is_saved(held[name]))

    def warn(self, remedy: str) -> bool:
        """Log the names of :meth:`changed`; returns whether there are any.

        Args:
            remedy: Where to keep them.
        """
        if changed := self.changed():
            _logger.warning(
                "After a pause these variables of your function are again as they are before its "
                "loop: %s. If a later step reads one, %s.",
                ", ".join(changed[:_FEW]),
                remedy,
            )
        return bool(changed)

    def _is_saved(self, value: Any) -> bool:
        """Whether it is a saved value, or a copy of one."""
        copied = isinstance(value, (int, float, str))
        return any(
            value is one or (copied and type(one) is type(value) and one == value)
            for one in self._saved()
        )

    def _found(self) -> Iterator[tuple[str, Any]]:
        """Each value by its name, with what shows that it has changed; None if nothing does."""
        saved = {id(one) for one in self._saved() if not isinstance(one, _PLAIN)}
        left = deque((name, one, 0) for name, one in self._of_frame())
        seen: set[int] = set()
        while left:
            name, one, depth = left.popleft()
            one = owner_of(one)
            if id(one) in saved or (has_state(one) and not isinstance(one, type)):
                continue
            yield name, _shown(one)
            if depth < _DEEP and id(one) not in seen and not isinstance(one, _PLAIN):
                seen.add(id(one))
                left += [(key, part, depth + 1) for key, part in self._within(name, one)]

    def _of_frame(self) -> Iterator[tuple[str, Any]]:
        if self._frame is not None:
            yield from self._frame.f_locals.items()
            yield from self._globals(self._frame.f_code, self._frame.f_globals)

    def _globals(self, code: CodeType, outside: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        if self._with_globals:
            for held, name in global_variables(code, outside):
                yield name, held[name]

    def _within(self, name: str, one: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(one, (list, tuple, dict)):
            items = one.items() if isinstance(one, dict) else enumerate(one)
            for key, part in items if len(one) <= _MANY else ():
                if not isinstance(part, _PLAIN):
                    yield f"{name}[{key!r}]", part
        elif isinstance(one, FunctionType):
            if is_users(one):
                yield from ((f"{name}.{key}", each) for key, each in held_around(one).items())
                yield from ((f"{name}.{key}", each) for key, each in vars(one).items())
                yield from self._globals(one.__code__, one.__globals__)
        elif isinstance(one, type):
            if self._with_globals and not is_of_library(one.__module__):
                for key, each in list(vars(one).items()):
                    if isinstance(each, FunctionType) or not (key[:2] == "__" or callable(each)):
                        yield f"{one.__qualname__}.{key}", each
        elif not isinstance(one, ModuleType):
            users, is_data = is_users(one), _is_data(one)
            if is_data and hasattr(one, "dataset"):
                yield f"{name}.dataset", one.dataset
            if users:
                yield type(one).__qualname__, type(one)
                for key, each in list(vars(one).items()):
                    if not is_data or isinstance(each, _PLAIN):
                        yield f"{name}.{key}", each


def _is_data(one: Any) -> bool:
    return hasattr(one, "__getitem__") or hasattr(one, "__iter__")


def _shown(one: Any) -> Any:
    if is_moving(one):
        frame = getattr(one, "gi_frame", None)  # of a generator
        ours = frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS)
        return None if ours else object()  # unlike any other
    if isinstance(one, (list, tuple, dict, set, deque)) and len(one) > _MANY:
        return len(one)
    if isinstance(one, (list, tuple, dict)):  # its other items have names of their own
        items = one.items() if isinstance(one, dict) else enumerate(one)
        return digest_of([[repr(key), part] for key, part in items if isinstance(part, _PLAIN)])
    if getattr(one, "nbytes", 0) > _COUNTS_BYTES:
        return _checksum(one)
    return digest_of(one)


def _checksum(array: Any) -> int | None:
    version = getattr(array, "_version", None)  # of a tensor, which each change in place raises
    if version is None and array.nbytes <= _DATA_BYTES:
        with suppress(TypeError, ValueError, BufferError):  # not in one piece, or no array
            version = zlib.crc32(memoryview(array).cast("B"))
    return version
