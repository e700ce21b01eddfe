"""The rows of `make soak`, which must be able to fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.usage import Use
from benchmarks.soak import promises
from benchmarks.soak.rota import Term


def use(number: int, first: float, last: float) -> Use:
    """A use of the only slot."""
    return Use("study", number, 1, 0, "cpu:0", number, first, last, 0, 5)


ENDED = Term("study", 0, deadline=20.0, trials=9, ended=21.0)


@pytest.mark.parametrize(
    ("term", "last", "broken"),
    [
        (ENDED, 21.0, []),
        (ENDED, 40.0, ["no rank trains past the deadline, but for 7 s in which it is frozen"]),
        (replace(ENDED, ended=None), 19.0, ["each study ends"]),
        (replace(ENDED, stuck=1), 19.0, ["each worker ends with its study"]),
    ],
)
def test_what_is_late_is_found(term: Term, last: float, broken: list[str]) -> None:
    rows = promises.of_deadlines([term], [use(1, 0.0, last)], frozen=7.0)
    assert [row.promise for row in rows if not row.kept] == broken


BEGINS = "The database does not answer (reset); training continues.\n"
ENDS = "The database answers again after 2.0 s.\n"


@pytest.mark.parametrize(
    ("log", "traces", "doubled"),
    [
        (BEGINS + ENDS + BEGINS + ENDS, 0, 0),
        (BEGINS + "== 7 1.0\n" + BEGINS, 0, 0),  # of two processes
        (BEGINS + BEGINS + ENDS, 0, 1),
        ("Traceback (most recent call last):\n", 1, 0),
    ],
)
def test_what_a_log_should_not_say_is_found(log: str, traces: int, doubled: int) -> None:
    rows = promises.of_logs({"worker-0": log})
    assert [len(row.found) for row in rows] == [traces, doubled]


def test_a_run_that_slows_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "JUDGED", 40)
    even = [use(number, number, number + 1.0) for number in range(40)]
    assert promises.of_pace(even).kept
    slower = [use(number, 0.1 * number**2, 0.1 * number**2 + 1) for number in range(40)]
    assert not promises.of_pace(slower).kept


def test_a_missing_and_a_needless_checkpoint_are_found(tmp_path: Path) -> None:
    best, other = tmp_path / "best.ckpt", tmp_path / "other.ckpt"
    best.touch()
    assert all(row.kept for row in promises.of_files(tmp_path, {"study": best}, {"study"}))
    other.touch()
    rows = promises.of_files(tmp_path, {"study": best}, {"study"})
    assert [row.kept for row in rows] == [True, False]
    rows = promises.of_files(tmp_path, {"study": None, "idle": None}, {"study"})
    assert next(row.found for row in rows) == ["study"]
