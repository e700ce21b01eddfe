"""Pages speak of trials and workers as things, in plain English."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = re.compile(
    r"\b(who|whoever|whom|nobody|somebody|everybody|is told|are told|is had|are had|hears)\b", re.I
)
#: Pages that are still to be rewritten; a page that is leaves this list.
LATER = {
    "policies/seer.md", "policies/hermes.md", "policies/shockwave.md", "design/allocation.md",
    "design/glossary.md", "forecasts.md",
}  # fmt: skip
PAGES = sorted(
    path
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    if path.relative_to(ROOT).as_posix().removeprefix("docs/") not in LATER
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_in_plain_english(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), start=1)
    found = [f"{page.name}:{number}: {line}" for number, line in lines if WORDS.search(line)]
    assert not found, "\n".join(found)
