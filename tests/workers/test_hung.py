"""When ranks are taken for hung, and what a rank's last words make of its trial."""

from __future__ import annotations

import time
from multiprocessing import Pipe
from typing import Any

import pytest

from optuna_deadline.allocation.records import Grant
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank.messages import End, Raised, Waits
from optuna_deadline.worker import segment as gangs
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang, Progress
from optuna_deadline.worker.verdict import decide_outcome


class Ear:
    """Takes everything."""

    never_reported = False

    def receive(self, rank: Rank, message: tuple[Any, ...]) -> None: ...


class Clock:
    """The monotonic clock, in the test's hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(gangs, "time", clock)
    return clock


def make(clock: Clock, patience: float = 60.0, ranks: int = 2) -> Gang:
    grant = Grant(3, 0, 1, tuple((i, 1) for i in range(ranks)), ("cpu:0",) * ranks)
    gang = Gang(grant, 0, 0.0, granted_at=clock.now, inbox=Ear(), hang_timeout=patience)
    gang.ranks = [Rank(index, Pipe()[0]) for index in range(ranks)]
    return gang


def speak(gang: Gang, clock: Clock, after: float) -> None:
    clock.now += after
    gang.progress = Progress(position=1.0)
    gang.receive(gang.ranks[0], Waits())


def silent(gang: Gang, clock: Clock, seconds: float) -> bool:
    clock.now += seconds
    gang.kill_hung()
    return gang.hung


def test_silence_is_measured_by_patience_and_by_what_was_usual(clock: Clock) -> None:
    gang = make(clock)
    assert not silent(gang, clock, 10_000), "it has not begun"
    gang = make(clock)
    speak(gang, clock, 1.0)
    assert not silent(gang, clock, 59.0) and silent(gang, clock, 2.0)
    gang = make(clock)
    speak(gang, clock, 3600.0)  # it reports once in an hour
    assert not silent(gang, clock, 3 * 3600.0) and silent(gang, clock, 1.0)


def overdue(gang: Gang, clock: Clock, seconds: float, stop: float = 0.3) -> bool:
    clock.now += seconds
    return gang.kill_overdue(stop)


def test_a_rank_that_hangs_does_not_hold_a_leaving_worker_for_longer_than_15_seconds(
    clock: Clock,
) -> None:
    gang = make(clock)
    speak(gang, clock, 40.0)  # a slow start is no slow step
    speak(gang, clock, 2.0)
    gang.send_directive(Directive(Kind.PAUSE, "asked to leave"))
    assert not overdue(gang, clock, 1000.0), "no worker leaves: the plan can wait"
    gang = make(clock)
    gang.worker_leaving = True
    assert not overdue(gang, clock, 1000.0), "nobody has told it"
    gang.send_directive(Directive(Kind.PAUSE, "asked to leave"))
    speak(gang, clock, 14.0)  # it reports on and never asks
    assert not overdue(gang, clock, 0.9) and overdue(gang, clock, 0.2)
    assert not overdue(gang, clock, 1.0), "said once"
    assert (
        gang.overdue
        and decide_outcome(gang.ending()).state == "paused"
        and decide_outcome(gang.ending()).failures == 0
    )


def test_a_slow_step_or_a_slow_save_is_waited_for_when_a_worker_leaves(clock: Clock) -> None:
    gang = make(clock)
    gang.worker_leaving = True
    speak(gang, clock, 5.0)
    speak(gang, clock, 40.0)
    gang.send_directive(Directive(Kind.PAUSE, "asked to leave"))
    assert not overdue(gang, clock, 60.0) and overdue(gang, clock, 1.0)
    gang = make(clock)
    gang.worker_leaving = True
    gang.send_directive(Directive(Kind.PAUSE, "asked to leave"))
    assert not overdue(gang, clock, 29.0, stop=20.0) and overdue(gang, clock, 2.0, stop=20.0)
    gang = make(clock)
    gang.worker_leaving = True
    gang.send_directive(Directive(Kind.PAUSE, "asked to leave"))
    gang.acknowledged = True  # and its model is large
    assert not overdue(gang, clock, 130.0) and overdue(gang, clock, 6.0)


def ended(*ends: End | None, exit_code: int = -9) -> Gang:
    gang = make(Clock(), ranks=len(ends))  # type: ignore[arg-type]
    for rank, end in zip(gang.ranks, ends, strict=True):
        rank.end_message, rank.exit_code = end, 0 if end else exit_code
    return gang


def test_memory_may_be_there_the_next_time() -> None:
    for line in (
        "MemoryError: ",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate"
        " memory: you tried to allocate 9 bytes.",
    ):
        gang = ended(Raised(line, "trace"))
        verdict = decide_outcome(gang.ending())
        assert (verdict.state, verdict.end_reason, verdict.failures) == ("paused", "died", 1)
        assert "out of memory" in verdict.log_message and verdict.log_message.endswith(
            "it resumes"
        )
        gang.failures = 2
        assert decide_outcome(gang.ending()).state == "failed"
    assert decide_outcome(ended(Raised("ValueError: nothing", "trace")).ending()).state == "failed"


def test_who_failed_first_is_the_cause_and_the_others_are_its_victims() -> None:
    victim = Raised("RuntimeError: Connection closed by peer", "trace")
    gang = ended(victim, Raised("MemoryError: no room", "trace"))
    gang.ranks[0].end_message_at, gang.ranks[1].end_message_at = (
        time.monotonic() + 1,
        time.monotonic(),
    )
    assert "no room" in decide_outcome(gang.ending()).log_message
    assert "SIGKILL" in decide_outcome(ended(victim, None).ending()).log_message


def test_a_port_that_was_taken_meanwhile_is_nobodys_fault() -> None:
    words = "DistNetworkError: port: 3, name: EADDRINUSE, message: address already in use"
    gang = ended(Raised(words, "trace"), Raised(words, "trace"))
    gang.failures = 2
    verdict = decide_outcome(gang.ending())
    assert (verdict.state, verdict.end_reason, verdict.failures) == ("paused", "port", 2)


def test_the_time_for_which_the_worker_was_stopped_is_no_silence(clock: Clock) -> None:
    gang = make(clock)
    speak(gang, clock, 1.0)
    clock.now += 500.0
    gang.discount(500.0)
    assert not silent(gang, clock, 59.0)
    speak(gang, clock, 0.5)
    assert gang.longest_silence < 61.0, "it says nothing of the next silences"
    assert silent(gang, clock, 3 * 60.0)
