"""What the headlines' command prints."""

from __future__ import annotations

from benchmarks.headlines.__main__ import as_text
from benchmarks.headlines.rows import Row


def test_every_row_fits_into_a_narrow_pipe() -> None:
    met = Row("a figure " * 12, "SEER", 2.0, 3.0, "at least 2", True, "words " * 60)
    missed = Row("another", "Hermes", "few", None, "> 0", False)
    text = as_text([met, missed])
    assert max(map(len, text.splitlines())) < 80
    assert "ratio 1.5" in text and "missed: another" in text and "1 of 2 met." in text
