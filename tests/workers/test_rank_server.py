"""Ranks on other hosts are let in with the key, and noticed when they are gone."""

from __future__ import annotations

import errno
import pickle
import queue
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import AuthenticationError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optuna_deadline.allocation.records import GangPart, Grant
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank import rendezvous
from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.messages import Advanced, EndHeard, LastStep, Left, Welcome
from optuna_deadline.rank.rendezvous import RankServer, connect_to_leader
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.verdict import Absent, CutOff

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
    far.send(Advanced(0.0, 1.0, 2.0))
    assert near.recv() == Advanced(0.0, 1.0, 2.0)
    near.send(EndHeard())
    assert far.recv() == EndHeard()
    near.shut_down()
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


def test_a_changed_repeated_or_dropped_message_ends_the_connection(
    reception: RankServer, guests: Guests
) -> None:
    for tampering in ("changed", "repeated", "dropped"):
        far = connect_to_leader(reception.endpoint, 0, 3, 1, 5.0)
        near = guests.get(timeout=5)[3]
        sent: list[bytes] = []
        wire, far._socket = far._socket, SimpleNamespace(sendall=sent.append)  # type: ignore[assignment]
        for step in range(3):
            far.send(LastStep(step))
        if tampering == "changed":
            sent[0] = sent[0].replace(b"0", b"9")
        elif tampering == "repeated":
            sent.insert(0, sent[0])
        else:
            sent.pop(0)
        for part in sent:
            wire.sendall(part)
        with pytest.raises(AuthenticationError, match="not from the peer"):
            for _ in sent:
                near.recv()
        wire.close()


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
    directive = far.recv().directive
    assert (directive.kind, directive.reason) == (Kind.PAUSE, "rest")
    assert not crossing.attach_remote_rank(1, near) and not crossing.attach_remote_rank(0, near)
    assert not crossing.exited


def test_a_gang_whose_part_is_gone_expects_it_no_more() -> None:
    crossing = gang()
    assert not crossing.exited
    crossing.drop_member("c")
    assert not crossing.exited
    crossing.drop_member("b")
    assert crossing.exited and not isinstance(crossing.ending().end, Left)
    assert not crossing.attach_remote_rank(1, object())  # type: ignore[arg-type]


def test_a_cut_rank_is_told_from_one_that_never_came(
    reception: RankServer, guests: Guests
) -> None:
    crossing, absent = gang(), gang()
    for one in (crossing, absent):
        one.ranks[0].end_message = Left()
    connect_to_leader(reception.endpoint, 0, 3, 1, 5.0)
    assert crossing.attach_remote_rank(1, guests.get(timeout=5)[3])
    before = time.monotonic()
    crossing.kill()
    absent.kill()
    assert crossing.remote_ranks_may_run and not absent.remote_ranks_may_run  # it never came
    crossing.ranks[1].closed = True  # as the switchboard hears it
    assert (crossing.ending().end, absent.ending().end) == (CutOff(), Absent())
    crossing.without_members = True
    assert not crossing.remote_ranks_may_run
    crossing.without_members, crossing.disconnected_at = False, before - 13
    assert not crossing.remote_ranks_may_run


class Payload:
    """Code that runs where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_a_peer_with_the_key_runs_no_code_before_it_is_admitted(
    reception: RankServer, guests: Guests, tmp_path: Path
) -> None:
    """A teammate can read the key in the database."""
    end = reception.endpoint
    intruder = Channel(socket.create_connection((end.address, end.port)))
    rendezvous._authenticate(intruder, end.key, leads=False)
    assert intruder.recv() == Welcome()
    intruder.send_bytes(pickle.dumps(Payload(tmp_path / "touched")))
    with pytest.raises((EOFError, ConnectionError)):
        intruder.recv()
    assert guests.empty() and not (tmp_path / "touched").exists()


@pytest.mark.slow
def test_silent_connections_do_not_keep_ranks_out(
    reception: RankServer, guests: Guests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_HANDSHAKE_SECONDS", 1)
    end, threads = reception.endpoint, threading.active_count()
    silent = [socket.create_connection((end.address, end.port)) for _ in range(200)]
    most = 2 * rendezvous._MAX_HANDSHAKES  # each with its timer
    assert threading.active_count() - threads <= most
    connect_to_leader(end, 0, 3, 1, 30.0)
    assert guests.get(timeout=30)[:3] == (0, 3, 1)
    for one in silent:
        one.close()


def test_ranks_are_accepted_after_the_system_has_refused_a_connection(
    reception: RankServer, guests: Guests
) -> None:
    class OutOfFiles:
        def __init__(self, real: socket.socket) -> None:
            self._real, self.refused = real, 0

        def accept(self) -> Any:
            self.refused += 1
            if self.refused <= 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return self._real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    socket_ = OutOfFiles(reception._socket)
    reception._socket = socket_  # type: ignore[assignment]
    connect_to_leader(reception.endpoint, 0, 1, 1, 5.0)  # by the accept that waits already
    connect_to_leader(reception.endpoint, 0, 2, 1, 5.0)
    assert [guests.get(timeout=5)[1] for _ in range(2)] == [1, 2] and socket_.refused > 2


def test_a_host_out_of_threads_for_a_moment_lets_in_who_comes_later(
    reception: RankServer, guests: Guests, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, start = [0], threading.Thread.start
    reception._handshakes = threading.BoundedSemaphore(2)

    def starts(thread: threading.Thread) -> None:
        if refused[0] < 5:
            refused[0] += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    far = connect_to_leader(reception.endpoint, 0, 3, 1, 20.0)
    assert guests.get(timeout=5)[:3] == (0, 3, 1) and refused == [5]
    far.close()
