"""What the guide's table says of each habit is what becomes of a training that has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loop_habits import HABITS
from verdicts import DIFFERS, LOSSES, Row, begin_on_two_slots, check, table

TABLE = [*table("pytorch.md")]
#: One row for each mechanism guards every landing.
EACH_LANDING = {
    "DataLoader(shuffle=True)",
    "dropout",
    "a step every three batches",
    "BatchNorm",
    "a summed loss",
    "OneCycleLR",
}


def _rows(guarding: set[str], rows: Sequence[Row]) -> list[Any]:
    nightly = pytest.mark.nightly
    return [
        pytest.param(row, id=row.habit, marks=[] if row.habit in guarding else nightly)
        for row in rows
    ]


def test_each_habit_has_one_line_that_says_what_to_do() -> None:
    assert sorted(row.habit for row in TABLE) == sorted(HABITS)
    assert [row.habit for row in TABLE if not row.advice and row[1:3] != ("exact", "exact")] == []


def test_whatever_differs_says_so_when_it_runs() -> None:
    assert [row.habit for row in TABLE if DIFFERS in row and not HABITS[row.habit].words] == []


@pytest.mark.slow
@pytest.mark.parametrize("row", _rows(EACH_LANDING, TABLE))
def test_paused_and_moved_it_trains_as_the_guide_says(tmp_path: Path, row: Row) -> None:
    check(tmp_path, HABITS[row.habit], row)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", _rows({"a summed loss"}, [row for row in TABLE if row.habit in LOSSES])
)
def test_a_loss_is_compared_where_a_trial_begins_on_two_slots(tmp_path: Path, row: Row) -> None:
    begin_on_two_slots(tmp_path, HABITS[row.habit], row)
