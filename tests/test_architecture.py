"""Which module imports which, that the core needs no torch, and what names look like."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

ROOT = Path(__file__).parents[1]

_WITHOUT_TORCH = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "lightning", "scipy", "sklearn"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import optuna_deadline
for module in pkgutil.walk_packages(optuna_deadline.__path__, "optuna_deadline."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("imported", *sorted(m for m in sys.modules if m.startswith("optuna_deadline")))
"""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for root in ("optuna_deadline", "integrations"):
        for path in sorted((ROOT / root).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def test_each_class_name_exists_once() -> None:
    places = defaultdict(list)
    for path, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    del places["DeadlineCallback"]  # of each framework's package
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_attribute_is_looked_up_by_a_composed_name() -> None:
    """A handler found by ``getattr(self, f"_on_{kind}")`` is lost when it is renamed."""
    composed = [
        f"{path}:{node.lineno}"
        for path, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
        and isinstance(node.args[1], (ast.JoinedStr, ast.BinOp))
    ]
    assert composed == []


def test_layers_import_downwards_only() -> None:
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    run = subprocess.run(
        [sys.executable, "-c", linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_module_of_the_core_imports_without_torch_and_scipy() -> None:
    run = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "optuna_deadline.allocation.database.engine" in run.stdout
    assert "optuna_deadline_lightning" not in run.stdout


def test_a_rank_starts_without_table_and_policies() -> None:
    """Every worker starts a process that forks ranks, and another one where it dies."""
    program = (
        "import sys, optuna_deadline, optuna_deadline.rank.fork_server; optuna_deadline.segment; "
        "print({'sqlalchemy', 'optuna_deadline.policies'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "set()", run.stderr


def test_all_that_is_public_is_there() -> None:
    import optuna_deadline

    assert set(optuna_deadline.__all__) <= set(dir(optuna_deadline))
    for name in optuna_deadline.__all__:
        assert getattr(optuna_deadline, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'rnu'"):
        _ = optuna_deadline.rnu


def test_what_optuna_does_not_document_is_used_in_one_module() -> None:
    study = optuna.create_study(storage="sqlite://")
    owners = [study, study.ask(), study.trials[0], study._storage, study.sampler]
    owners += [study._storage._backend, optuna.samplers.GridSampler({"x": [1]})]  # type: ignore[attr-defined]
    owners += [optuna.samplers.BruteForceSampler(), optuna.pruners.PatientPruner(None, 1)]
    private = {name for each in owners for name in dir(each) if name[0] == "_" != name[1]}
    used = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, module in modules()
        if path.name != "_optuna.py"
        for node in ast.walk(module)
        if (
            isinstance(node, ast.Attribute)
            and node.attr in private
            and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        )
        or (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("optuna.")
            and any(part[0] == "_" for part in f"{node.module}.{node.names[0].name}".split("."))
        )
    ]
    assert used == []
