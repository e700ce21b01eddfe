"""The pages on the table and on security name their tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ESSAY = (ROOT / "docs" / "design" / "allocation.md").read_text()
SECURITY = (ROOT / "docs" / "guide" / "security.md").read_text()


@pytest.mark.parametrize("page", [ESSAY, SECURITY], ids=["table", "security"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    suites = (ROOT / "tests" / "allocation" / "suite").rglob("*.py")
    places = [*(ROOT / "tests").rglob("test_*.py"), *suites]
    tests = "\n".join(path.read_text() for path in places)
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 10
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_every_file_that_the_essay_names_exists() -> None:
    files = set(re.findall(r"`(tests/[\w/.]+\.py)`", ESSAY))
    assert {file for file in files if not (ROOT / file).exists()} == set()


def test_every_invariant_has_a_test() -> None:
    rows = re.findall(r"^\| (I\d) \|.*\|(.*)\|$", ESSAY, re.MULTILINE)
    assert [row[0] for row in rows] == [f"I{n}" for n in range(1, 10)]
    assert all("test_" in row[1] for row in rows)
