"""Reports that grow share their rows, and never change."""

from __future__ import annotations

import pickle
import random

import pytest

from optuna_deadline.policies.api import WORST, Report, TrialView
from optuna_deadline.policies.curve import ReportCurve, extends


def reports(count: int, seed: int = 0) -> list[Report]:
    chance = random.Random(seed)
    return [Report(step, chance.random(), float(step)) for step in range(1, count + 1)]


def grown(rows: list[Report]) -> ReportCurve:
    curve = ReportCurve()
    for row in rows:
        curve = curve.followed_by(row)
    return curve


def test_a_curve_reads_like_its_tuple() -> None:
    rows = reports(9)
    curve = grown(rows)
    grown_on = curve.followed_by(Report(10, 2.0, 10.0))
    assert curve == tuple(rows) == ReportCurve(rows) and hash(curve) == hash(ReportCurve(rows))
    assert list(curve) == rows and len(curve) == 9 and bool(curve) and not ReportCurve()
    for part in (slice(2, 5), slice(None, None, -2), slice(-3, None), slice(20)):
        assert curve[part] == tuple(rows)[part]
    assert (curve[0], curve[-1], grown_on[-1].step) == (rows[0], rows[-1], 10)
    for place in (9, -10):
        with pytest.raises(IndexError):
            curve[place]
    assert pickle.loads(pickle.dumps(curve)) == curve != grown_on
    assert curve.best_score == max(row.score for row in rows) and ReportCurve().best_score == WORST
    assert TrialView(0, "paused", reports=grown_on).best_score == 2.0


def test_what_follows_a_curve_twice_is_two_curves() -> None:
    start = grown(reports(3))
    one, other = (start.followed_by(Report(4, score, 4.0)) for score in (0.1, 0.2))
    assert (one[-1].score, other[-1].score, len(start)) == (0.1, 0.2, 3)
    assert extends(one, start) and extends(other, start) and not extends(one, other)
    assert not extends(start, one)


def test_a_long_curve_is_copied_at_no_report() -> None:
    """A tuple for each of 40,000 reports takes ten seconds of a planner's time."""
    curve, lists = ReportCurve(), set[int]()
    for row in reports(100):
        earlier, curve = curve, curve.followed_by(row)
        lists.add(id(curve._shared))
        assert extends(curve, earlier)
    assert len(lists) == 1
