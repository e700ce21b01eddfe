"""Text speaks of trials and workers as things, in plain English."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = re.compile(
    r"\b(who|whoever|whom|nobody|somebody|everybody|is told|are told|is had|are had|hears)\b", re.I
)
#: Names that are no prose: a user of the operating system, a class of the page's style.
NAMES = re.compile(r'"nobody"|``nobody``|\bnobody(?= =|\.pw)|\bwho(?=[.,]| =)|"who"|\.who\b')
#: Still to be rewritten.
LATER = ("tests/",)
SUFFIXES = {".py", ".md", ".html", ".js", ".yaml", ".yml", ".toml", ".sh"}
FOLDERS = (
    "optuna_deadline", "integrations", "benchmarks", "examples", "deploy", "docs", "optunahub",
)  # fmt: skip


def _texts() -> list[str]:
    paths = [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*"))]
    names = (path.relative_to(ROOT).as_posix() for path in paths if path.suffix in SUFFIXES)
    return sorted(name for name in names if not name.startswith(LATER))


@pytest.mark.parametrize("name", [*FOLDERS, "*.md"])
def test_text_is_in_plain_english(name: str) -> None:
    found = []
    for text in _texts():
        if text.startswith(f"{name}/") or (name == "*.md" and "/" not in text):
            for number, line in enumerate((ROOT / text).read_text().splitlines(), start=1):
                if WORDS.search(NAMES.sub("", line)):
                    found.append(f"{text}:{number}: {line}")
    assert not found, "\n".join(found)
