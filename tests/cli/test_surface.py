"""The command line's surface is a promise: it changes here first, and in the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import optuna_deadline
from optuna_deadline.cli import app

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
WORKER = [
    "--max-slots", "--gpus", "--gpu-ids", "--cpus", "--oversubscribe", "--pool", "--weight",
    "--sharing", "--checkpoints", "--hang-timeout", "--keep-warm", "--dashboard", "--multi-node",
    "--host-type", "--max-time", "--slot-timeout", "--preemption-notice",
]  # fmt: skip
STUDY = [
    "--max-slots", "--keep-all", "--deadline", "--direction", "--policy", "--n-trials", "--budget",
    "--price", "--sampler", "--warm-start-from",
]  # fmt: skip


def _workers(*without: str) -> list[str]:
    return [name for name in WORKER if name not in without]


_OF_A_POOL = ("--pool", "--weight", "--sharing", "--multi-node")
_OF_A_STAY = ("--max-time", "--slot-timeout", "--preemption-notice")
SURFACE = {
    "run": [
        "objective", *STUDY, *_workers("--max-slots", *_OF_A_POOL, *_OF_A_STAY), "--study",
        "--storage", "--log",
    ],
    "create": ["study", "--storage", *STUDY],
    "worker": ["objective", "--study", "--storage", *WORKER, "--log"],
    "slurm": [
        "objective", "--study", "--storage",
        *_workers("--max-slots", "--gpus", "--gpu-ids", "--oversubscribe", *_OF_A_STAY), "sbatch",
        "--nodes", "--gpus-per-node", "--gres", "--array", "--time", "--partition", "--notice",
        "--logs", "--dry-run",
    ],
    "status": [
        "--storage", "study", "--events", "--last", "--trial", "--kind", "--forecast", "--later",
        "--gpus", "--budget", "--pool", "--json",
    ],
    "top": ["study", "--storage"],
    "load-best": ["study", "--storage", "--to", "--json"],
    "report": ["study", "--storage", "--output"],
    "dashboard": ["--storage", "--port", "--host", "--allow-host", "--write"],
    "metrics": ["--storage", "--study", "--port", "--host", "--allow-host"],
    "clean": ["study", "--storage", "--checkpoints"],
    "set": ["study", "--storage", "--deadline", "--price", "--budget"],
    "stop": ["study", "--storage", "--within"],
    "steer": ["trial", "--study", "--storage", "--pause", "--resume", "--resize"],
    "drain": ["host", "--storage", "--undo"],
    "check": [
        "objective", "--gpu-ids", "--hang-timeout", "--steps", "--slots", "--params", "--seed",
        "--gpus", "--tolerance", "--json",
    ],
    "doctor": ["--storage", "--checkpoints", "--json"],
    "demo": [
        "--task", "--deadline", "--cpus", "--workers", "--studies", "--storage", "--policy",
        "--sharing", "--budget", "--price", "--folder", "--json", "--seed",
    ],
    "simulate": None,  # for those who make policies: free to change
}  # fmt: skip


def _commands(group: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            found |= _commands(command, f"{prefix}{name} ")
        else:
            found[f"{prefix}{name}"] = command
    return found


def test_the_surface_is_frozen() -> None:
    found = _commands(typer.main.get_command(app))
    assert list(found) == list(SURFACE)
    for name, expected in SURFACE.items():
        names = [
            p.name if p.param_type_name == "argument" else p.opts[0] for p in found[name].params
        ]
        if "--storage-file" in names:
            assert names[names.index("--storage-file") - 1] == "--storage"
            names.remove("--storage-file")
        else:
            assert name in ("check", "demo", "simulate"), name
        if expected is not None:
            assert names == expected, name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_the_commands(shell: str) -> None:
    """What --install-completion puts into the shell asks the program so."""
    asked = {
        "_OPTUNA_DEADLINE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "optuna-deadline stat", "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "optuna-deadline stat", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }  # fmt: skip
    output = CliRunner().invoke(app, [], prog_name="optuna-deadline", env=asked).output
    assert "status" in output and "worker" not in output


def test_every_command_and_option_is_explained_and_in_the_reference() -> None:
    text = REFERENCE.read_text()
    for name, command in _commands(typer.main.get_command(app)).items():
        assert command.help, name
        assert f"`{name}`" in text, name
        for parameter in command.params:
            assert getattr(parameter, "help", None), (name, parameter.name)
            if SURFACE[name] is not None and parameter.param_type_name == "option":
                assert f"`{parameter.opts[0]}`" in text, (name, parameter.opts[0])


def test_the_version_is_printed() -> None:
    output = CliRunner().invoke(app, ["--version"])
    assert (output.exit_code, output.stdout.strip()) == (0, optuna_deadline.__version__)


def test_a_command_imports_its_own_parts_alone() -> None:
    """Else to pause a trial takes seconds: samplers, workers and figures come with much."""
    program = """
import sys
from optuna_deadline.cli import app
for name in ("steer", "set", "stop", "status", "load-best"):
    try:
        app([name, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, name
print(*sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = ran.stdout.splitlines()[-1].split()
    parts = ("samplers", "elastic", "simulation", "scenarios", "dashboard", "visualization")
    modules = ("app", "steering", "setting", "status", "load_best")
    assert {f"optuna_deadline.cli.{module}" for module in modules} <= {*found}
    assert not [name for part in parts for name in found if name == f"optuna_deadline.{part}"]
