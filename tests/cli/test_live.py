"""The live view: its content, its order, and that it fits the terminal."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from rich.console import Console

from optuna_deadline.live.top import lines, one_line, render, sparkline
from optuna_deadline.live.view import Decision, TrialRow, View, by_relevance, figure

VIEW = View(
    study="digits",
    time_left=42.4,
    deadline=datetime(2026, 1, 1, 12, 0, 30, tzinfo=timezone.utc),
    duration=60.0,
    best_value=0.9722,
    best_trial=1,
    best_step=8,
    slots_used=2,
    slots_total=2,
    rows=(
        TrialRow(0, "pruned", 0, 2, 0.31, 0.4, (0.2, 0.4, 0.31), "below its rung"),
        TrialRow(1, "running", 2, 8, 0.97, 0.9722, (0.5, 0.9, 0.9722, 0.97), "grows 1 -> 2"),
        TrialRow(2, "paused", 0, 3, math.nan, 0.91, (0.4, 0.91, None), "waits for a slot"),
        TrialRow(3, "ready"),
    ),
    decisions=tuple(Decision(float(i), f"decision {i}") for i in range(8)),
    pauses=3,
    resumes=2,
    resizes=5,
)


def _printed(view: View, height: int = 24) -> list[str]:
    console = Console(record=True, file=io.StringIO(), width=80, height=height)
    console.print(render(view, height))
    return console.export_text().splitlines()


def test_it_says_how_much_time_is_left_what_is_best_and_what_moved() -> None:
    text = "\n".join(_printed(VIEW))
    assert "42 s left, 12:00:30" in text
    assert "0.9722  trial 1, step 8" in text
    assert "slots 2/2  gate open  so far 3 paused, 2 resumed, 5 resized" in text
    assert "grows 1 -> 2" in text
    assert "decision 7" in text and "decision 1" not in text  # the last six


def test_what_trains_comes_first_and_the_best_stays_in_sight() -> None:
    assert [row.number for row in by_relevance(VIEW)] == [1, 3, 2, 0]
    assert [row.number for row in by_relevance(replace(VIEW, best_trial=0))] == [1, 0, 3, 2]


def test_the_lower_value_comes_first_where_lower_is_better() -> None:
    rows = (TrialRow(0, "paused", best=0.4), TrialRow(1, "paused", best=0.2))
    view = replace(VIEW, rows=rows, best_trial=None)
    assert [row.number for row in by_relevance(view)] == [0, 1]
    assert [row.number for row in by_relevance(replace(view, direction="minimize"))] == [1, 0]


@pytest.mark.parametrize("height", [16, 24, 50])
def test_it_fits_however_many_trials_there_are(height: int) -> None:
    rows = tuple(
        TrialRow(i, "pruned" if i < 90 else "paused", 0, i, 0.5, 0.5, (0.1,) * 50, "long " * 40)
        for i in range(100)
    )
    printed = _printed(replace(VIEW, study="s" * 200, rows=rows), height)
    assert len(printed) <= height
    assert all(len(line) <= 80 for line in printed)
    assert any("more:" in line and "pruned" in line for line in printed)
    assert sum("paused" in line for line in printed) >= 3


def test_a_study_without_trials_renders() -> None:
    view = replace(VIEW, rows=(), decisions=(), best_value=None, best_trial=None, time_left=-0.2)
    text = "\n".join(_printed(view))
    assert "none yet" in text and "deadline reached" in text


def test_a_study_that_has_ended_before_its_deadline_has_no_time_left() -> None:
    text = "\n".join(_printed(replace(VIEW, time_left=60.0, ended=True)))
    assert "ended, deadline" in text and "left" not in text


def test_words_in_brackets_are_printed_as_they_are() -> None:
    view = replace(VIEW, study="[red]x", decisions=(Decision(1.0, "trial [3] [/]"),))
    text = "\n".join(_printed(view))
    assert "[red]x" in text and "trial [3] [/]" in text


def test_a_sparkline_shows_the_newest_value_and_marks_what_is_not_finite() -> None:
    assert sparkline([0.0, 0.5, 1.0], 0.0, 1.0) == "▁▅█"
    assert sparkline([math.nan, None, math.inf], 0.0, 1.0) == "···"
    assert sparkline([0.0] * 99 + [1.0], 0.0, 1.0, width=4) == "▁▁▁█"
    assert sparkline([7.0], 7.0, 7.0) == "▅"
    assert sparkline([], 0.0, 1.0) == ""


def test_plain_lines_say_each_thing_once() -> None:
    first = lines(None, VIEW)
    assert first[0] == "digits: 42 s until 12:00:30, 2 slots"
    assert any("trial 0 pruned, best 0.4000" in line for line in first)
    assert lines(VIEW, VIEW) == []
    rows = (*VIEW.rows[:3], replace(VIEW.rows[3], state="failed"))
    later = replace(
        VIEW,
        time_left=39.9,
        gate_open=False,
        rows=rows,
        decisions=(*VIEW.decisions[1:], Decision(20.0, "trial 2 resumes")),
        best_value=0.98,
        best_step=9,
    )
    assert lines(VIEW, later) == [
        "  20.0 s  trial 2 resumes",
        "  20.1 s  best 0.9800 (trial 1, step 9)",
        "  20.1 s  40 s left, 2 of 2 slots used; 1 running, 1 paused, 1 failed, 1 pruned",
    ]


def test_figures_stay_short() -> None:
    assert [figure(v) for v in (None, 0.5, -1.25, 123456.789)] == [
        *("-", "0.5000", "-1.2500", "1.2e+05"),
    ]


def test_one_line_says_what_is_left_and_what_is_best() -> None:
    console = Console(record=True, file=io.StringIO(), width=120)
    console.print(one_line(VIEW))
    assert console.export_text().rstrip() == (
        "digits  42 s left  best 0.9722 (trial 1, step 8)  2 of 2 slots  1 running, 1 ready, "
        "1 paused, 1 pruned"
    )
