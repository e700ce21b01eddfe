"""A rank says that its objective has taken note of the end: who has not may hang."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from optuna_deadline.directives import KEEP, Directive, Kind
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.trial import RankSegment, RankTrial

PAUSE = Directive(Kind.PAUSE, "asked to leave")


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("question", ["directive", "should_prune", "out_of_time"])
def test_whichever_way_the_objective_asks(tmp_path: Path, world_size: int, question: str) -> None:
    told: list[str] = []
    link: Any = SimpleNamespace(newest=KEEP, notify=lambda what, **facts: told.append(what))
    link.request = lambda method, call: link.newest
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
    assert told == ["obeys"]
    link.next_segment = lambda asked_to_go: (2, ())
    segment.park()
    asked()
    assert told == ["obeys", "parked", "obeys"], "the next segment has an end of its own"
