"""The README's snippets run, and the commands in it exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^optuna-deadline .*", README, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs_as_it_stands(number: int, tmp_path: Path) -> None:
    for text in SNIPPETS:  # those that are named are there for the others to import
        if named := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / named[1]).write_text(text)
    script = tmp_path / f"snippet_{number}.py"
    script.write_text(SNIPPETS[number])
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_its_options(command: str) -> None:
    typer = pytest.importorskip("typer.main")
    from optuna_deadline.cli import app

    _, name, *arguments = shlex.split(command)
    found = typer.get_command(app).commands[name]
    known = {option for parameter in found.params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= known


def test_the_two_commands_are_in_the_makefile() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
