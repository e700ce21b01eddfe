"""What a rank tells its worker of its objective: that it has seen the end, or cannot pause."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from optuna_deadline.directives import KEEP, Directive, Kind
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.messages import (
    Advanced,
    Message,
    Obeys,
    Pausable,
    Reported,
    Resumed,
    StaysWarm,
)
from optuna_deadline.rank.trial import RankSegment, RankTrial

PAUSE = Directive(Kind.PAUSE, "asked to leave")


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("question", ["directive", "should_prune", "out_of_time"])
def test_whichever_way_the_objective_asks(tmp_path: Path, world_size: int, question: str) -> None:
    told: list[Message] = []
    link: Any = SimpleNamespace(newest=KEEP, send=told.append)
    link.agreed_directive = lambda call: link.newest
    segment = RankSegment(
        cast(Link, link), rank=0, world_size=world_size, fence=1, folder=tmp_path, resume=None,
        direction="minimize",
    )  # fmt: skip
    trial = RankTrial(cast(Link, link), segment, 0)
    asked = getattr(segment if question == "directive" else trial, question)
    asked()
    assert told == []
    link.newest = PAUSE
    asked()
    asked()
    assert told == [Obeys()]
    link.next_segment = lambda asked_to_go: Resumed(2, ())
    segment.keep_warm()
    asked()
    assert told == [Obeys(), StaysWarm(), Obeys()], "the next segment has an end of its own"


def test_an_objective_that_reports_without_its_segment_cannot_be_paused(tmp_path: Path) -> None:
    told: list[Message] = []
    link: Any = SimpleNamespace(newest=KEEP, next_look=99, send=told.append)

    def kinds() -> list[type[Message]]:
        return [type(each) for each in told if not isinstance(each, Advanced)]

    segment = RankSegment(
        cast(Link, link), rank=0, world_size=1, fence=1, folder=tmp_path, resume=None,
        direction="minimize",
    )  # fmt: skip
    trial = RankTrial(cast(Link, link), segment, 0)
    trial.report(0.5, 1)
    trial.report(0.4, 2)
    assert kinds() == [Pausable, Reported, Reported] and Pausable(False) in told
    assert trial.segment is segment  # it knows how to resume after all
    told.clear()
    trial.report(0.3, 3)
    other = RankTrial(cast(Link, link), segment, 1)
    assert other.segment is segment
    other.report(0.5, 1)
    assert kinds() == [Reported, Reported]


def test_the_last_position_is_sent_when_a_trial_leaves(tmp_path: Path) -> None:
    """In between, the pipe is used a few times a second; a short segment would have no speed."""
    sent: list[Message] = []
    link: Any = SimpleNamespace(newest=KEEP, send=sent.append)
    segment = RankSegment(
        cast(Link, link), rank=0, world_size=1, fence=1, folder=tmp_path, resume=None,
        direction="minimize",
    )  # fmt: skip
    for position in (0.5, 1.0, 1.5):
        segment.progress(position)
    assert [each.position for each in sent if isinstance(each, Advanced)] == [0.5]
    link.newest = PAUSE
    segment.newest()
    segment.send_progress()
    assert [each.position for each in sent if isinstance(each, Advanced)] == [0.5, 1.5]
    assert sent[-1] == Obeys()


def test_validations_and_waits_count_from_the_first_position_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was before it is part of the start, and the next segment counts anew."""
    sent: list[Message] = []
    clock = [100.0]
    monkeypatch.setattr("optuna_deadline.rank.trial.time.monotonic", lambda: clock[0])

    def wait_for_plan(step: int, until: float) -> None:
        clock[0] += 0.5

    def counts() -> list[tuple[float, float]]:
        return [(each.validated, each.waited) for each in sent if isinstance(each, Advanced)]

    link: Any = SimpleNamespace(
        newest=KEEP, next_look=0, send=sent.append, wait_for_plan=wait_for_plan,
        next_segment=lambda _: Resumed(2, ()),
    )  # fmt: skip
    segment = RankSegment(
        cast(Link, link), rank=0, world_size=1, fence=1, folder=tmp_path, resume=None,
        direction="minimize",
    )  # fmt: skip
    trial = RankTrial(cast(Link, link), segment, 0)
    segment.validated(9.0)
    segment.progress(1.0)
    segment.validated(2.0)
    trial.report(0.5, 1)
    assert counts() == [(0.0, 0.0), (2.0, 0.0)]
    segment.directive()
    segment.directive()
    segment.send_progress()
    assert counts()[2:] == [(2.0, 0.5)]
    segment.keep_warm()
    segment.send_progress()
    segment.progress(2.0)
    assert counts()[3:] == [(0.0, 0.0)]
