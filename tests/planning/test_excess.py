"""Trials that wait are retired early enough for all ends to be reported by the deadline."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from optuna_deadline.planning.settlement import StudyEnd

WAITING = 13


def retired(closes_in: float, interval: float) -> int:
    """The number of retired trials of 13 that wait, of which each end takes 0.05 s."""
    found = list[int]()

    def retire(worker: str, term: int, reasons: Mapping[int, str]) -> int:
        found.extend(reasons)
        return len(reasons)

    table: Any = SimpleNamespace(retire=retire)
    best: Any = SimpleNamespace(find=lambda: None)
    reporter: Any = SimpleNamespace(seconds_per_end=lambda trip: 0.05)
    trials: Any = None
    end = StudyEnd(trials, table, "me", best, reporter, interval=interval, keep_all=False)
    rows = {
        number: SimpleNamespace(number=number, alive=True, owner=None, mode="pause")
        for number in range(WAITING)
    }
    reading: Any = SimpleNamespace(trials=rows)
    reports: Any = SimpleNamespace(worst_first=list)
    end.retire_excess(1, reading, closes_in, reports, 0.0)
    return len(found)


def test_none_retires_as_long_as_the_next_tick_is_early_enough() -> None:
    assert retired(2.4, 1.0) == 0  # 13 ends take 1.3 s with the slack


@pytest.mark.parametrize("closes_in", [1.1, 0.2])
def test_all_but_the_best_retire_before_a_tick_that_would_be_too_late(closes_in: float) -> None:
    left = max(0, int((closes_in - 1.0) / 0.1 + 1e-9))
    assert retired(closes_in, 1.0) >= WAITING - 1 - left
    assert retired(closes_in, 0.0) < WAITING - 1


def test_without_time_all_but_the_best_retire() -> None:
    assert retired(0.0, 0.0) == WAITING - 1
