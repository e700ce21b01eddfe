"""Trials that wait are retired early enough for all ends to be reported by the deadline."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from optuna_deadline.planning.settlement import StudyEnd

WAITING = 13


def study_end(seconds_per_end: float) -> StudyEnd:
    best: Any = SimpleNamespace(find=lambda: None)
    reporter: Any = SimpleNamespace(seconds_per_end=lambda trip: seconds_per_end)
    unused: Any = None
    return StudyEnd(unused, unused, "me", best, reporter, keep_all=False)


def retired(closes_in: float, interval: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of retired trials of 13 that wait, of which each end takes 0.05 s."""
    end, found = study_end(0.05), list[int]()

    def give_up(term: int, numbers: Iterable[int]) -> int:
        found.extend(numbers)
        return len(found)

    monkeypatch.setattr(end, "_give_up", give_up)
    row = SimpleNamespace(alive=True, owner=None, mode="pause")
    rows = {number: SimpleNamespace(**vars(row), number=number) for number in range(WAITING)}
    reading: Any = SimpleNamespace(trials=rows)
    reports: Any = SimpleNamespace(worst_first=list)
    end.retire_excess(1, reading, closes_in, interval, reports, 0.0)
    return len(found)


def test_none_retires_that_the_next_tick_may_still_retire(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retired(2.4, 1.0, monkeypatch) == 0  # 13 ends take 1.3 s with the slack


@pytest.mark.parametrize("closes_in", [1.1, 0.2])
def test_all_but_the_best_retire_before_a_tick_that_would_be_too_late(
    closes_in: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = max(0, int((closes_in - 1.0) / 0.1 + 1e-9))
    assert retired(closes_in, 1.0, monkeypatch) >= WAITING - 1 - left
    assert retired(closes_in, 0.0, monkeypatch) < WAITING - 1


def test_without_time_all_but_the_best_retire(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retired(0.0, 0.0, monkeypatch) == WAITING - 1
