"""The pages on the table, security and faults name their tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ESSAY = (ROOT / "docs" / "design" / "allocation.md").read_text()
SECURITY = (ROOT / "docs" / "guide" / "security.md").read_text()
FAULTS = (ROOT / "docs" / "guide" / "faults.md").read_text()


@pytest.mark.parametrize("page", [ESSAY, SECURITY, FAULTS], ids=["table", "security", "faults"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    suites = (ROOT / "tests" / "allocation" / "suite").rglob("*.py")
    places = [*(ROOT / "tests").rglob("test_*.py"), *suites]
    tests = "\n".join(path.read_text() for path in places)
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 10
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_every_fault_has_a_test() -> None:
    rows = re.findall(r"^\| (?!event )(\S.*) \|$", FAULTS.partition("\n## ")[0], re.MULTILINE)
    assert len(rows) > 25
    assert [row for row in rows if not re.search(r"\| `test_\w+`$", row)] == []


def test_every_file_that_the_essay_names_exists() -> None:
    files = set(re.findall(r"`(tests/[\w/.]+\.py)`", ESSAY))
    assert {file for file in files if not (ROOT / file).exists()} == set()


def test_every_invariant_has_a_test() -> None:
    rows = re.findall(r"^\| (I\d) \|.*\|(.*)\|$", ESSAY, re.MULTILINE)
    assert [row[0] for row in rows] == [f"I{n}" for n in range(1, 10)]
    assert all("test_" in row[1] for row in rows)
