"""The snippets of the README and the documentation run, and the commands in them exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly_but(r"README")

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
SNIPPETS = {
    page: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for page, text in PAGES.items()
}
COMMANDS = sorted(
    {
        command
        for text in PAGES.values()
        for command in re.findall(r"^optuna-deadline .*", text.replace("\\\n", " "), re.MULTILINE)
    }
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page, snippets in SNIPPETS.items() for number in range(len(snippets))],
)
def test_a_snippet_runs_as_it_stands(page: str, number: int, tmp_path: Path) -> None:
    for text in SNIPPETS[page]:  # those that are named are there for the others to import
        if named := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / named[1]).write_text(text)
    script = tmp_path / f"snippet_{number}.py"
    script.write_text(SNIPPETS[page][number])
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_its_options(command: str) -> None:
    typer = pytest.importorskip("typer.main")
    from optuna_deadline.cli import app

    found, arguments = typer.get_command(app), shlex.split(command)[1:]
    found = found.get_command(None, arguments.pop(0))
    known = {option for parameter in found.params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= known


def test_the_two_commands_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", PAGES["README.md"], re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []
