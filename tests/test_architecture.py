"""Who may import whom, and that the core needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

_WITHOUT_TORCH = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "lightning", "pytorch_lightning", "sklearn"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import optuna_deadline
for module in pkgutil.walk_packages(optuna_deadline.__path__, "optuna_deadline."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("imported", *sorted(m for m in sys.modules if m.startswith("optuna_deadline")))
"""


def test_layers_import_downwards_only() -> None:
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    run = subprocess.run(
        [sys.executable, "-c", linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_module_of_the_core_imports_without_torch() -> None:
    run = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "optuna_deadline.allocation.sql.database.engine" in run.stdout
    assert "optuna_deadline_lightning" not in run.stdout


def test_a_worker_starts_without_scipy() -> None:
    """It takes longer to import than all the rest; who needs it imports it then."""
    program = (
        "import sys, optuna_deadline.elastic, optuna_deadline.cli; print('scipy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr


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
