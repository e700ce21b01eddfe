"""What a wheel holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_its_packages_with_types_and_no_tests(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    integrations = {path.name for path in (ROOT / "integrations").iterdir() if path.is_dir()}
    assert tops == {"optuna_deadline", *integrations} and "optuna_deadline_torch" in tops
    for package in tops:
        assert f"{package}/py.typed" in names and f"{package}/__init__.py" in names
    assert "optuna_deadline/simulation/tables/digits.npz" in names, "simulate has data of its own"
    for file in ("page.html", "page.css", "page.js"):
        assert f"optuna_deadline/dashboard/static/{file}" in names, "the live page's own files"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for_tests = re.compile(rb"^(?:from|import) (?:pytest|hypothesis|scipy)\b", re.MULTILINE)
    sources = [name for name in names if name.endswith(".py")]
    found = [name for name in sources if for_tests.search(zipfile.ZipFile(wheel).read(name))]
    assert found == ["optuna_deadline/testing/policies.py"], "the suite for policies of users"
    assert wheel.stat().st_size < 1_000_000
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    extras = set(re.findall(r"^Provides-Extra: (\S+)", text, re.MULTILINE))
    assert extras == {
        "torch", "lightning", "transformers", "xgboost", "lightgbm", "catboost", "keras",
        "remote", "postgres", "ray", "dashboard", "metrics", "demo", "docs",
        "dev",
    }  # fmt: skip
    assert not re.search(r"^Requires-Dist: (torch|lightning)[^;]*$", text, re.MULTILINE)
    (entry,) = (name for name in names if name.endswith("entry_points.txt"))
    assert b"optuna-deadline = optuna_deadline.cli:app" in zipfile.ZipFile(wheel).read(entry)


def test_a_package_index_accepts_the_wheel_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("twine")
    home = "https://example.org/ours"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
        env={**os.environ, "OPTUNA_DEADLINE_HOME": f"{home}/"},
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("METADATA"))
    text = zipfile.ZipFile(wheel).read(name).decode()
    targets = re.findall(r"!?\[[^]]*\]\(([^)]+)\)", text)
    assert len(targets) > 20
    assert all(target.startswith("https://") for target in targets)
    paths = [target.split("/main/")[1] for target in targets if target.startswith(home)]
    assert all((ROOT / path).is_file() for path in paths)
    assert f"Project-URL: Source, {home}\n" in text
