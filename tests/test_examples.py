"""The examples and the OptunaHub packages run to their end by themselves, at a short deadline."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import optuna_deadline

pytestmark = [pytest.mark.nightly_but(r"^$")]
ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
HUB = ROOT / "optunahub" / "package"
PACKAGES = {"pruners/deadline": "pruner", "samplers/deadline": "sampler"}
SECONDS = {"plain": 3, "elastic": 12}
#: Frameworks that take long to start, and what is not installed everywhere.
SLOW, NEEDS = {"keras": 25, "huggingface": 25}, {"ray": "ray"}
#: What each says at its end, and the seconds that it is given.
SAYS = {
    "two_workers.py": (10, r"Workers left with \[0, 0\]\.\nBest accuracy [01]\.\d+: trial \d"),
    "harder_tasks.py": (15, r"Best value 0\.\d+ of \d+ trials: \d"),
    "dyhpo.py": (10, r"Best score 0\.\d+ with lr 0\.\d+"),
    "pbt.py": (10, r"Best score 0\.\d+ with lr 0\.\d+"),
    "budget.py": (
        7,
        r"Spent \S+ of \S+ USD(.*\n)+Best accuracy(.*\n)Its checkpoint, verified True",
    ),
}
OF_FRAMEWORKS = sorted(
    path.relative_to(EXAMPLES).as_posix()
    for kind in SECONDS
    for path in EXAMPLES.glob(f"*/{kind}.py")
)
LATER = re.compile(r"in that time|give a later deadline")
PAGE = (ROOT / "docs" / "guide" / "frameworks.md").read_text()
GLUE = re.compile(r"(?i)deadline|\bloop\b|\bpart\b|\btraining\b|out_of_time|folder|TrialPruned")


def run(script: Path, seconds: int) -> str:
    """What a script prints by its deadline, run beside the files that it stands with.

    A machine that is busy with other things may not import the frameworks, or train and save an
    epoch, in so few seconds; then the example says so, and is given more of them.
    """
    for deadline in (f"{seconds}s", f"{5 * seconds}s"):
        done = subprocess.run(
            [sys.executable, script.name, "--deadline", deadline],
            cwd=script.parent, env={**os.environ, "DEADLINE": deadline},
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode == 0 or not LATER.search(done.stderr):
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the examples, which leave a database and checkpoints behind."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_an_example_ends_by_itself_and_says_what_it_found(name: str, examples: Path) -> None:
    seconds, expected = SAYS[name]
    printed = run(examples / name, seconds)
    assert re.search(expected, printed), printed
    if name == "budget.py":
        spent, budget = map(float, re.findall(r"(?:Spent|of) (\d\.\d+)", printed)[:2])
        assert 0 < spent <= budget


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_FRAMEWORKS)
def test_a_framework_trains_by_the_deadline_and_keeps_its_model(name: str, examples: Path) -> None:
    framework, _, kind = name.removesuffix(".py").partition("/")
    pytest.importorskip(NEEDS.get(framework, "optuna"))
    printed = run(examples / name, SLOW.get(framework, SECONDS[kind]))
    assert re.search(r"Best [a-z ]+ \d\.\d+( of \d+ trials)?: \{'", printed), printed
    if kind == "elastic" and framework != "ray":
        assert re.search(r"^(checkpoint = torch\.load|zipfile\.ZipFile)\(", printed, re.MULTILINE)


@pytest.mark.parametrize("name", OF_FRAMEWORKS)
def test_an_example_of_a_framework_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < 60


def test_the_page_on_frameworks_counts_the_lines_of_glue() -> None:
    """In the objective, and in the study of a plain example; imports count as well."""
    counted: dict[str, int] = {}
    for name in OF_FRAMEWORKS:
        above, _, below = (EXAMPLES / name).read_text().partition('if __name__ == "__main__":')
        text = above.partition('"""\n\n')[2] + (below if name.endswith("plain.py") else "")
        code = [line.partition("#")[0] for line in text.splitlines()]
        lines = [line for line in code if "add_argument" not in line]
        counted[name] = sum(GLUE.search(line) is not None for line in lines)
    listed = re.findall(r"\b(\d+) in `(\S+?)`", PAGE)
    assert {name: int(lines) for lines, name in listed} == counted


def test_the_commands_of_the_slurm_example_exist() -> None:
    import typer.main

    from optuna_deadline.cli import app

    script = (EXAMPLES / "slurm" / "submit.sh").read_text().replace("\\\n", " ")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    commands = re.findall(r"^optuna-deadline (\w+) (.*)$", script, re.MULTILINE)
    assert [name for name, _ in commands] == ["create", "slurm"]
    for name, arguments in commands:
        known = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
        options = {option for parameter in known.params for option in parameter.opts}
        assert {*re.findall(r"--[\w-]+", arguments)} <= options


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(examples: Path) -> None:
    cells = json.loads((examples / "policies.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = examples / "notebook.py"
    script.write_text("\n\n".join(code))
    printed = run(script, 7)
    for expected in ("hypersched ", "fifo ", "best accuracy 0.", "Allocation"):
        assert expected in printed


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = json.loads((EXAMPLES / "policies.ipynb").read_text())
    assert notebook["nbformat"] == 4 and len({cell["id"] for cell in notebook["cells"]}) > 1
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_each_example_is_in_the_list() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    names = {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".ipynb")}
    assert names == {*SAYS, "policies.ipynb"}
    names |= {*OF_FRAMEWORKS, "slurm/submit.sh"}
    assert names == set(re.findall(r"\]\((\S+)\)", listed))


def load(package: str) -> ModuleType:
    """A package of the registry's layout by its path, as optunahub loads it."""
    name = f"hub_{package.replace('/', '_')}"
    spec = importlib.util.spec_from_file_location(name, HUB / package / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("package", PACKAGES)
def test_a_hub_package_is_ours_under_its_own_name(package: str) -> None:
    module = load(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is getattr(optuna_deadline, name)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_hub_package_has_what_the_registry_asks_for(package: str) -> None:
    folder = HUB / package
    assert {file.name for file in folder.iterdir() if file.is_file()} == {
        "LICENSE", "README.md", "__init__.py", "example.py", "requirements.txt",
    }  # fmt: skip
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    keys = dict(line.split(": ", 1) for line in front.splitlines())
    assert list(keys) == ["author", "title", "description", "tags", "optuna_versions", "license"]
    assert PACKAGES[package] in keys["tags"] and keys["license"] == "MIT License"
    for name in load(package).__all__:
        assert f"`{name}" in text


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_hub_packages_example_runs(package: str, tmp_path: Path) -> None:
    # In place of the optunahub package, which would fetch from the registry: the same by path.
    (tmp_path / "optunahub.py").write_text(
        "import importlib.util\n\n\n"
        "def load_module(package):\n"
        f"    place = f'{HUB}/{{package}}/__init__.py'\n"
        "    spec = importlib.util.spec_from_file_location('hub', place)\n"
        "    module = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(module)\n"
        "    return module\n"
    )
    shutil.copy(HUB / package / "example.py", tmp_path)
    assert "Best(number=" in run(tmp_path / "example.py", 2)
