"""The functions that are running, and which of them are the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import TypeVar

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


def running(kind: type[_Kind]) -> _Kind | None:
    """The object of a kind whose method is running; the innermost of several."""
    for frame in callers():
        if isinstance(one := frame.f_locals.get("self"), kind):
            return one
    return None
