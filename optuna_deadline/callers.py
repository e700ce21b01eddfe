"""The functions that are running, which of them are the user's own, and what their code names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def callers() -> Iterator[FrameType]:
    """The frames of the running functions, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_frame() -> FrameType | None:
    """The innermost running function that is of no library."""
    names = ((str(frame.f_globals.get("__name__")), frame) for frame in callers())
    return next((frame for name, frame in names if not is_of_library(name)), None)


def is_of_library(module: str) -> bool:
    """Whether a module is of Python's library, an installed one or this one."""
    root = module.partition(".")[0]
    known = root in sys.stdlib_module_names or root.startswith("optuna_deadline")
    return known or is_installed(root)


def is_installed(module: str) -> bool:
    """Whether a module, by its name, is of an installed library and not the user's own."""
    name = module.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name != "__main__" and "-packages" in file  # a script, whatever has started it


def global_variables(
    code: CodeType,
    outside: dict[str, Any],
    is_users: Callable[[str], bool] = lambda module: not is_of_library(module),
) -> Iterator[tuple[dict[str, Any], str]]:
    """The global variables that a code names: each by its file's, and its name there.

    Args:
        code: Of a function.
        outside: The global variables of its file.
        is_users: Whether a module, by its name, is the user's own.
    """
    names = _names(code)
    left, seen = [outside], {id(outside)}
    while left:
        held = left.pop()
        if not is_users(held.get("__name__") or ""):
            continue
        for name in sorted(names & held.keys()):  # alike in each process
            value = held[name]
            if not isinstance(value, ModuleType):
                yield held, name
            elif id(vars(value)) not in seen:
                seen.add(id(vars(value)))
                left.append(vars(value))


@lru_cache(maxsize=10_000)
def _names(code: CodeType) -> frozenset[str]:
    """The names in a function's code, that of inner functions included."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    names = frozenset(code.co_names).union(*inner)
    return frozenset(name for name in names if name[:2] != "__")


def running(kind: type[_Kind]) -> _Kind | None:
    """The object of a kind whose method is running; the innermost of several."""
    for frame in callers():
        if isinstance(one := frame.f_locals.get("self"), kind):
            return one
    return None
