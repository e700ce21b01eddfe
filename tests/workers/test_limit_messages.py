"""A rank's limit of its trial's slots is written to the table, once."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import optuna
import pytest

from optuna_deadline.allocation.records import Assignment
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.directives import KEEP
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.messages import Left, Message
from optuna_deadline.rank.trial import RankSegment
from optuna_deadline.segments import SegmentEnd, WholeTrial
from optuna_deadline.worker.inbox import TrialInbox
from optuna_deadline.worker.outage import Outage
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.sampling import TrialSampler
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.verdict import decide_outcome


def two_ranks(folder: Path) -> tuple[MemoryTable, Gang, list[RankSegment]]:
    """A trial on two slots and its ranks' segments, whose messages arrive at once."""
    table = MemoryTable("pool", 1, now=lambda: 1000.0, deadline=2000.0)
    slots = [slot.id for slot in table.register("me", "host", 1, [], 2)]
    term = table.elect_planner("me")
    assert term is not None
    table.open_trial("me", term, 0, 100)
    table.write_plan("me", term, [Assignment(0, "run", "me", 2, "test")])
    grant = table.acquire("me", 0, slots)
    assert grant is not None
    gang = Gang(grant, 0, 0.0)
    study = optuna.create_study()
    sampler = TrialSampler(study, lambda: None, lambda: True)
    gang.inbox = TrialInbox(table, "me", gang, study.ask(), lambda *_: None, sampler, Outage())
    segments = []
    for index in range(2):
        rank = Rank(index, None)

        def send(message: Message, rank: Rank = rank) -> None:
            gang.receive(rank, message)

        link = SimpleNamespace(send=send, newest=KEEP)
        segments.append(
            RankSegment(
                cast(Link, link),
                rank=index,
                world_size=2,
                fence=1,
                folder=folder,
                resume=None,
                direction="minimize",
            )
        )
        gang.ranks.append(rank)
    return table, gang, segments


def test_all_ranks_may_say_it_and_it_is_written_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table, gang, segments = two_ranks(tmp_path)
    for segment in segments:
        segment.limit_slots(1, "its batches are whole")
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        assert gang.inbox is not None
        gang.pending_writes.write(gang.inbox.store, gang.inbox.copy_to_optuna, math.inf)
    assert table.trials()[0].slot_limit == 1
    assert [event.kind for event in table.events()].count("limit") == 1
    assert caplog.messages == ["Trial 0 trains on one slot only: its batches are whole"]


@pytest.mark.parametrize(("known", "expected"), [(None, 1), (2, 1), (1, 0)])
def test_a_limit_that_a_segment_before_has_said_is_not_said_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, known: int | None, expected: int
) -> None:
    _, gang, segments = two_ranks(tmp_path)
    gang.known_limit = known
    segments[0].limit_slots(1, "its batches are whole")
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        assert gang.inbox is not None
        gang.pending_writes.write(gang.inbox.store, gang.inbox.copy_to_optuna, math.inf)
    assert len(caplog.messages) == expected


def test_a_gang_that_leaves_by_itself_for_its_limit_goes_on_later(tmp_path: Path) -> None:
    _, gang, segments = two_ranks(tmp_path)
    segments[1].limit_slots(1, "its batches are whole")
    for segment, rank in zip(segments, gang.ranks, strict=True):
        with pytest.raises(SegmentEnd):
            segment.leave()
        gang.receive(rank, Left())
    verdict = decide_outcome(gang.ending())
    assert (verdict.state, verdict.end_reason) == ("paused", "limit")


@pytest.mark.parametrize("slots", [0, -1, 1.5, "two", True])
def test_what_is_no_number_of_slots_is_refused(tmp_path: Path, slots: Any) -> None:
    for segment in (two_ranks(tmp_path)[2][0], WholeTrial()):
        with pytest.raises(DeadlineError, match="whole number of slots from 1, not"):
            segment.limit_slots(slots, "it is wrong")


def test_under_plain_optuna_it_is_said_once_and_nothing_else_happens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    WholeTrial().limit_slots(2, "its batches are whole")
    assert caplog.messages == ["This trial trains on 2 slots at most: its batches are whole"]
