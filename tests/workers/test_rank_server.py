"""Ranks on other hosts are let in with the key, and noticed when they are gone."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import AuthenticationError
from typing import Any

import pytest

from optuna_deadline.allocation.records import GangPart, Grant
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank.rendezvous import RankServer, connect_to_leader, shut_down
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang

Guests = queue.SimpleQueue[tuple[int, int, int, Any]]


@pytest.fixture
def guests() -> Guests:
    return queue.SimpleQueue()


@pytest.fixture
def reception(guests: Guests) -> Iterator[RankServer]:
    def admit(number: int, fence: int, index: int, link: Any) -> bool:
        if number == 0:
            guests.put((number, fence, index, link))
        return number == 0

    found = RankServer("127.0.0.1", admit)
    yield found
    found.close()


def test_who_has_the_key_is_let_in_and_heard(reception: RankServer, guests: Guests) -> None:
    far = connect_to_leader(reception.endpoint, 0, 3, 1, 5.0)
    *who, near = guests.get(timeout=5)
    assert who == [0, 3, 1]
    far.send(("tell", "progress", {}))
    assert near.recv() == ("tell", "progress", {})
    near.send(("bye",))
    assert far.recv() == ("bye",)
    shut_down(near)
    with pytest.raises(EOFError):
        far.recv()
    with pytest.raises(EOFError):
        near.recv()


def test_who_has_not_is_not(reception: RankServer, guests: Guests) -> None:
    with pytest.raises(AuthenticationError):
        connect_to_leader(replace(reception.endpoint, key="guessed"), 0, 3, 1, 5.0)
    assert guests.empty()


def test_who_is_not_awaited_is_sent_away(reception: RankServer, guests: Guests) -> None:
    far = connect_to_leader(reception.endpoint, 7, 3, 1, 5.0)
    with pytest.raises((EOFError, ConnectionError)):
        far.recv()
    assert guests.empty()


def test_a_closed_door_is_tried_for_so_long(reception: RankServer) -> None:
    reception.close()
    with pytest.raises(OSError, match="cannot be reached"):
        connect_to_leader(reception.endpoint, 0, 3, 1, 0.1)


def test_the_key_is_not_shown(reception: RankServer) -> None:
    assert reception.endpoint.key not in repr(reception.endpoint)


class Ear:
    """Hears nothing."""

    silent = True

    def hear(self, rank: Rank, message: tuple[Any, ...]) -> None: ...


def gang() -> Gang:
    """A gang of two, the second on another host."""
    part = GangPart("b", 1, ((2, 1),), ("cpu:0",))
    grant = Grant(0, 0, 3, ((1, 1),), ("cpu:0",), (part,))
    ranks = [Rank(0, None, exit_code=0), Rank(1, None, orphaned=True, remote=True)]
    return Gang(grant, 0, 0.0, ranks=ranks, inbox=Ear())


def test_a_rank_that_comes_late_hears_what_was_directed_before(
    reception: RankServer, guests: Guests
) -> None:
    crossing = gang()
    crossing.send_directive(Directive(Kind.PAUSE, "rest"))
    far = connect_to_leader(reception.endpoint, 0, 3, 1, 5.0)
    near = guests.get(timeout=5)[3]
    assert crossing.attach_remote_rank(1, near)
    kind, directive = far.recv()
    assert (kind, directive.kind, directive.reason) == ("directive", Kind.PAUSE, "rest")
    assert not crossing.attach_remote_rank(1, near) and not crossing.attach_remote_rank(0, near)
    assert not crossing.exited


def test_a_gang_whose_part_is_gone_expects_it_no_more() -> None:
    crossing = gang()
    assert not crossing.exited
    crossing.drop_member("c")
    assert not crossing.exited
    crossing.drop_member("b")
    assert crossing.exited and crossing.end_message()[0] != "left"
    assert not crossing.attach_remote_rank(1, object())  # type: ignore[arg-type]


def test_a_cut_rank_is_told_from_one_that_never_came(
    reception: RankServer, guests: Guests
) -> None:
    crossing, absent = gang(), gang()
    for one in (crossing, absent):
        one.ranks[0].end_message = ("left", "keep")
    connect_to_leader(reception.endpoint, 0, 3, 1, 5.0)
    assert crossing.attach_remote_rank(1, guests.get(timeout=5)[3])
    before = time.monotonic()
    crossing.kill()
    absent.kill()
    assert crossing.remote_ranks_may_run and not absent.remote_ranks_may_run  # it never came
    crossing.ranks[1].closed = True  # as the switchboard hears it
    assert crossing.end_message()[0] == "cut" and absent.end_message()[0] == "absent"
    crossing.without_members = True
    assert not crossing.remote_ranks_may_run
    crossing.without_members, crossing.disconnected_at = False, before - 13
    assert not crossing.remote_ranks_may_run
