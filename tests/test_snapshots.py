"""What users see changes on purpose only: the public API, the command line's help, and errors.

`OPTUNA_DEADLINE_RECORD=1 pytest tests/test_snapshots.py` writes `tests/snapshots` anew.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

ROOT = Path(__file__).parents[1]
SNAPSHOTS = Path(__file__).parent / "snapshots"
PUBLIC = (
    "optuna_deadline",
    "optuna_deadline.errors",
    "optuna_deadline.policies",
    "optuna_deadline.simulation",
    "optuna_deadline.testing.policies",
    "optuna_deadline.visualization",
    "optuna_deadline_torch",
    "optuna_deadline_lightning",
    "optuna_deadline_transformers",
    "optuna_deadline_xgboost",
    "optuna_deadline_lightgbm",
    "optuna_deadline_catboost",
    "optuna_deadline_keras",
)
ERRORS = re.compile(r"[A-Z]\w*(Error|Conflict|Gone|Away|Mismatch|Parameter|Exit|Lost)")


def api() -> Iterator[str]:
    """Each public name with its signature, and those of a class's public methods.

    Ray's are left out: it is not installed where the tests run.
    """
    for package in PUBLIC:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            yield f"{package}.{name}{_signature(thing)}"
            if inspect.isclass(thing):
                for method in sorted(vars(thing)):
                    if not method.startswith("_"):
                        yield f"{package}.{name}.{method}{_signature(vars(thing)[method])}"


def _signature(thing: Any) -> str:
    if isinstance(thing, (classmethod, staticmethod)):
        thing = thing.__func__
    if not callable(thing):
        return ""
    try:
        return re.sub(r"<(\w+ )?object .*?>|0x[0-9a-f]+", "...", str(inspect.signature(thing)))
    except ValueError:
        return ""


def command_line() -> Iterator[str]:
    """Each command with its help, its arguments and its options."""
    from optuna_deadline.cli import app

    def described(command: Any, path: str) -> Iterator[str]:
        yield f"$ {path}\n{command.help or ''}"
        for parameter in command.params:
            names = ", ".join(parameter.opts + parameter.secondary_opts)
            told = getattr(parameter, "help", None) or ""
            yield f"  {names} (default {parameter.default!r}): {told}"
        for name, inner in getattr(command, "commands", {}).items():
            yield from described(inner, f"{path} {name}")

    yield from described(typer.main.get_command(app), "optuna-deadline")


def errors() -> Iterator[str]:
    """What each `raise` of the product says, as it stands in the code."""
    found = set()
    for folder in ("optuna_deadline", "integrations"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and node.args:
                    name = ast.unparse(node.func).rpartition(".")[2]
                    texts = (ast.Constant, ast.JoinedStr)
                    if ERRORS.fullmatch(name) and isinstance(node.args[0], texts):
                        found.add(f"{name}: {_template(node.args[0])}")
    yield from sorted(found)


def _template(text: ast.Constant | ast.JoinedStr) -> str:
    """The words, with {} for what is filled in."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


@pytest.mark.parametrize("lines", [api, command_line, errors])
def test_it_is_as_recorded(lines: Callable[[], Iterator[str]]) -> None:
    path = SNAPSHOTS / f"{lines.__name__}.txt"
    text = "\n".join(line.rstrip() for line in "\n".join(lines()).splitlines()) + "\n"
    if os.environ.get("OPTUNA_DEADLINE_RECORD"):
        path.write_text(text)
    assert text == path.read_text()
