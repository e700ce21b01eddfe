"""Whose code a class or a function is, and what its code names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from optuna_deadline.callers import global_variables, is_installed

_LIBRARIES = {
    "accelerate", "builtins", "datasets", "itertools", "lightning", "numpy", "optuna",
    "optuna_deadline", "optuna_deadline_lightning", "optuna_deadline_torch",
    "optuna_deadline_transformers", "pytorch_lightning", "tokenizers", "torch", "torchmetrics",
    "transformers",
}  # fmt: skip

CALLABLES = (FunctionType, MethodType, partial)  # which keep something beside their code


def is_of_library(kind: type | FunctionType) -> bool:
    """Whether a class or a function is of a library whose state has its own place."""
    return _root(kind.__module__) in _LIBRARIES


def is_of_any_library(kind: type) -> bool:
    """Whether a class is no code of the user's, such as a table or an image that is data."""
    return is_of_library(kind) or is_installed(kind.__module__)


def unwrapped(value: Any) -> Any:
    """The function of a property, a static or a class method; anything else as it is."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


class UserCode:
    """Tells the user's own code from that of libraries.

    Args:
        *users: Objects whose classes are the user's, though a package with them may be installed.
    """

    def __init__(self, *users: Any) -> None:
        self._roots = {_root(type(one).__module__) for one in users} - _LIBRARIES

    def has(self, one: type | FunctionType | ModuleType) -> bool:
        """Whether a class, a function or a module is the user's."""
        return self._has(one.__name__ if isinstance(one, ModuleType) else one.__module__)

    def _has(self, module: str | None) -> bool:
        root = _root(module)
        known = not root or root in _LIBRARIES or root in sys.stdlib_module_names
        return root in self._roots or not (known or is_installed(root))

    def variables(
        self, code: CodeType, outside: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """As :func:`~optuna_deadline.callers.global_variables`."""
        return global_variables(code, outside, self._has)


def _root(module: str | None) -> str:
    return (module or "").partition(".")[0]  # code that was made by exec may have none
