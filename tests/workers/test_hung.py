"""When ranks are taken for hung, and what a rank's last words make of its trial."""

from __future__ import annotations

import time
from multiprocessing import Pipe
from typing import Any

import pytest

from optuna_deadline.allocation.records import Grant
from optuna_deadline.workers import gang as gangs
from optuna_deadline.workers.gang import Gang
from optuna_deadline.workers.ranks import Rank
from optuna_deadline.workers.verdicts import judge


class Ear:
    """Takes everything."""

    silent = False

    def hear(self, rank: Rank, message: tuple[Any, ...]) -> None: ...


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
    gang = Gang(grant, 0, 0.0, granted_at=clock.now, listener=Ear(), patience=patience)
    gang.ranks = [Rank(index, Pipe()[0]) for index in range(ranks)]
    return gang


def speak(gang: Gang, clock: Clock, after: float) -> None:
    clock.now += after
    gang.progress.position = 1.0
    gang.hear(gang.ranks[0], ("tell", "progress", {}))


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


def ended(*ends: tuple[str, Any] | None, exit_code: int = -9) -> Gang:
    gang = make(Clock(), ranks=len(ends))  # type: ignore[arg-type]
    for rank, end in zip(gang.ranks, ends, strict=True):
        rank.end, rank.exit_code = end, 0 if end else exit_code
    return gang


def test_memory_may_be_there_the_next_time() -> None:
    for line in (
        "MemoryError: ",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate"
        " memory: you tried to allocate 9 bytes.",
    ):
        gang = ended(("error", (line, "trace")))
        verdict = judge(gang)
        assert (verdict.state, verdict.ended, verdict.failures) == ("paused", "died", 1)
        assert "out of memory" in verdict.words and verdict.words.endswith("it goes on")
        gang.failures = 2
        assert judge(gang).state == "failed"
    assert judge(ended(("error", ("ValueError: nothing", "trace")))).state == "failed"


def test_who_failed_first_is_the_cause_and_the_others_are_its_victims() -> None:
    victim = ("error", ("RuntimeError: Connection closed by peer", "trace"))
    gang = ended(victim, ("error", ("MemoryError: no room", "trace")))
    gang.ranks[0].ended_at, gang.ranks[1].ended_at = time.monotonic() + 1, time.monotonic()
    assert "no room" in judge(gang).words
    assert "SIGKILL" in judge(ended(victim, None)).words


def test_a_port_that_was_taken_meanwhile_is_nobodys_fault() -> None:
    words = "DistNetworkError: port: 3, name: EADDRINUSE, message: address already in use"
    gang = ended(("error", (words, "trace")), ("error", (words, "trace")))
    gang.failures = 2
    verdict = judge(gang)
    assert (verdict.state, verdict.ended, verdict.failures) == ("paused", "port", 2)
