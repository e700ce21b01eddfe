"""Each test runs in the tier that its marks name."""

from __future__ import annotations

import pytest
from tiers import SAME_WORK, TURNS, runs, slowness


@pytest.mark.parametrize(
    ("marks", "commit", "landing"),
    [((), True, True), (("slow",), False, True), (("slow", "nightly"), False, False)],
)
def test_marks_say_in_which_tiers_a_test_runs(
    marks: tuple[str, ...], commit: bool, landing: bool
) -> None:
    assert runs("tests/a.py::b", marks, "commit", None, []) is commit
    assert runs("tests/a.py::b", marks, "landing", None, []) is landing
    assert runs("tests/a.py::b", marks, "all", None, [])


def test_each_nightly_test_has_one_turn_in_eight_landings() -> None:
    marks = ("slow", "nightly")
    for name in ("tests/a.py::b", "tests/a.py::b[c]", "tests/d/e.py::f"):
        turns = [turn for turn in range(40, 40 + TURNS) if runs(name, marks, "landing", turn, [])]
        assert len(turns) == 1


def test_a_changed_area_runs_its_nightly_tests_in_two_landings() -> None:
    marks = ("slow", "nightly")
    for name in ("tests/d/a.py::b", "tests/d/a.py::b[c]", "tests/d/e.py::f"):
        turns = [turn for turn in (40, 41) if runs(name, marks, "landing", turn, ["tests/d"])]
        assert len(turns) == 1
    assert runs("tests/workers/a.py::b", marks, "landing", None, ["tests/workers"])
    assert not runs("tests/workers_of/a.py::b", marks, "landing", None, ["tests/workers"])


def test_a_budget_grows_with_the_time_that_the_same_work_takes() -> None:
    assert slowness([]) == slowness([SAME_WORK / 2]) == 1
    assert slowness([SAME_WORK, 3 * SAME_WORK, 40 * SAME_WORK]) == pytest.approx(3)


@pytest.mark.slow
def test_slow_tests_of_a_file_take_turns_under_xdist(request: pytest.FixtureRequest) -> None:
    """Whole studies of one file at once would starve each other."""
    if hasattr(request.config, "workerinput"):
        assert request.node.nodeid.endswith("@tests/test_tiers")
