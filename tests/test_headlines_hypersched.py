"""HyperSched's headlines: every row is there, with its fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.headlines import hypersched
from benchmarks.headlines.__main__ import as_text, tally
from benchmarks.headlines.hypersched_runs import SLOTS, Case, allocation
from benchmarks.headlines.rows import Options, Row
from benchmarks.measuring import Progress


@pytest.mark.slow
def test_every_row_is_there_with_its_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypersched, "PAPER", {300.0: hypersched.PAPER[900.0]})
    monkeypatch.setattr(hypersched, "_MIDDLE", 300.0)
    monkeypatch.setattr(hypersched, "QUICK_SEEDS", 2)
    options = Options(None, quick=True, jobs=1, pictures=tmp_path, progress=Progress())
    rows = list(hypersched.rows(options))
    assert len({row.name for row in rows}) == len(rows) == 3 + 2 + 3 + 1 + 1
    for row in rows:
        assert row.system == "hypersched" and row.note
        assert (row.met is None) or row.target, "a row without a target cannot be met"
        assert row.ours is not None
    assert rows[0].paper == pytest.approx(0.046)
    for picture in ("hypersched-accuracy.png", "hypersched-allocation.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_a_row_without_a_target_and_a_tie_are_counted_apart() -> None:
    met, missed = (Row("a", "s", None, 1.0, "> 0", answer) for answer in (True, False))
    tie, bare = (Row("a", "s", None, 1.0, target, None) for target in ("> 0", ""))
    assert tally([met, met, missed, tie, bare]) == "2 of 4 met, 1 ties; 1 rows have no target."
    shown = as_text([met, missed, tie, bare]).splitlines()
    assert [line[:4] for line in shown if line[5:] == "a"] == ["met ", "MISS", "tie ", "-   "]


def test_no_more_slots_are_held_than_there_are() -> None:
    held = allocation(Case("hypersched", "climbing", 0, 300.0))
    for _, _, begin, _ in held:
        assert sum(slots for _, slots, b, e in held if b <= begin < e) <= SLOTS
