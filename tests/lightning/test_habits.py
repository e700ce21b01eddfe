"""A training with each habit ends as the guide's table predicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from habits import HABITS
from verdicts import DIFFERS, Row, check, guarding_rows, table

TABLE = [*table("exactness.md")]
#: One row for each mechanism guards every landing.
EACH_LANDING = {
    "DataLoader(shuffle=True)",
    "a batch_size that the slots do not divide",
    "manual optimization",
    "a LightningDataModule",
    "CSVLogger",
}


def test_each_habit_has_one_line_that_says_what_to_do() -> None:
    assert sorted(row.habit for row in TABLE) == sorted(HABITS)
    assert [row.habit for row in TABLE if not row.advice and row[1:3] != ("exact", "exact")] == []


def test_whatever_differs_says_so_when_it_runs() -> None:
    assert [row.habit for row in TABLE if DIFFERS in row and not HABITS[row.habit].words] == []


@pytest.mark.slow
@pytest.mark.parametrize("row", guarding_rows(EACH_LANDING, TABLE))
def test_paused_and_moved_it_trains_as_the_guide_says(tmp_path: Path, row: Row) -> None:
    check(tmp_path, HABITS[row.habit], row)
