"""A rank ends by itself when its worker says no more."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank.channel import Channel, channel_pair
from optuna_deadline.rank.link import LEASE_EXPIRED_EXIT_CODE, Link
from optuna_deadline.rank.messages import (
    Directed,
    Leaves,
    Message,
    PassOn,
    Planned,
    Raised,
    Reported,
    Resumed,
    Trusted,
)
from optuna_deadline.rank.trial import RankSegment, RankTrial

pytestmark = pytest.mark.slow

_CONTEXT = multiprocessing.get_context("fork")


def rank(raw: Channel, trusted_until: float, work: Any) -> None:
    """A rank that trains for ever."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    Link(raw, trusted_until, grace=0.5)
    raw.send("trains")
    while True:
        work.value += 1


@pytest.fixture
def work() -> Any:
    """What the rank has done."""
    return _CONTEXT.Value("L", lock=False)


@pytest.fixture
def fork(work: Any) -> Any:
    """Forks such a rank, and leaves none behind."""
    started = []

    def start(trusted_for: float) -> tuple[Any, Any]:
        ours, theirs = channel_pair()
        process = _CONTEXT.Process(
            target=rank, args=(theirs, time.monotonic() + trusted_for, work)
        )
        process.start()
        theirs.close()
        started.append(process)
        return process, ours

    yield start
    for process in started:
        process.kill()
        process.join()


Fork = Callable[[float], tuple[Any, Any]]


def test_it_ends_with_its_trust(fork: Fork) -> None:
    process, _ = fork(0.5)
    process.join(5)
    assert process.exitcode == LEASE_EXPIRED_EXIT_CODE


def test_it_goes_on_while_trust_is_renewed(fork: Fork) -> None:
    process, ours = fork(2.0)
    ours.send(Trusted(time.monotonic() + 60))
    process.join(3)
    assert process.exitcode is None
    ours.send(Trusted(0.0))
    process.join(5)
    assert process.exitcode == LEASE_EXPIRED_EXIT_CODE


def test_frozen_until_its_slots_are_somebody_elses_it_does_nothing_more(
    fork: Fork, work: Any
) -> None:
    process, ours = fork(0.5)
    ours.recv()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.2)
    ours.send(Trusted(time.monotonic() + 60))  # too late
    before = work.value
    os.kill(process.pid, signal.SIGCONT)
    process.join(5)
    assert (process.exitcode, work.value) == (-signal.SIGALRM, before)


def follower(raw: Channel, leader: Channel) -> None:
    """A rank whose leader is on another host."""
    link = Link(raw, time.monotonic() + 60, grace=0.5, leader="remote")
    link.connect_leader(leader)
    raw.send(("connected",))
    while True:
        link.send(Raised(link.newest.kind.value, ""))
        time.sleep(0.01)


@pytest.mark.parametrize("message", [Trusted(1e9), PassOn(Leaves("x")), Resumed(7, ())])
def test_a_leader_on_another_host_does_not_stand_in_for_the_worker(message: Any) -> None:
    (ours, theirs), (leader, of_rank) = channel_pair(), channel_pair()
    process = _CONTEXT.Process(target=follower, args=(theirs, of_rank), daemon=True)
    process.start()
    assert ours.recv() == ("connected",)
    leader.send(Directed(Directive(Kind.PAUSE, "asked", 1)))
    while leader.recv() != Raised("pause", ""):
        pass
    leader.send(message)
    process.join(20)
    assert process.exitcode == 1


def test_forked_too_late_it_never_trains(fork: Fork) -> None:
    process, ours = fork(-1.0)
    process.join(5)
    assert process.exitcode == LEASE_EXPIRED_EXIT_CODE
    with pytest.raises(EOFError):
        ours.recv()


def report_twice(raw: Channel, folder: str) -> None:
    """Report steps 3 and 4, and send the directive after each and the later steps of waits.

    Whether there is a wait after step 3 depends on how soon the plan is there.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    link = Link(raw, time.monotonic() + 60, grace=0.5)
    segment = RankSegment(
        link, rank=0, world_size=1, fence=1, folder=Path(folder), resume=None, direction="minimize"
    )
    segment._reported_at -= 100.0  # the report before: it may wait for the longest time
    trial, waits, wait = RankTrial(link, segment, 0), [], link.wait_for_plan

    def counted(step: int, until: float) -> None:
        waits.extend([step] if step > 3 else [])
        wait(step, until)

    link.wait_for_plan = counted  # type: ignore[method-assign]
    kinds = []
    for step in (3, 4):
        trial.report(0.5, step)
        kinds.append(segment.directive().kind.value)
    link.send_end(Raised(f"{kinds} {waits}", ""))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Planned(3, 9), "['keep', 'keep'] []"),
        (Planned(3, 4), "['keep', 'keep'] [4]"),
        (Directed(Directive(Kind.PAUSE, "below its rung")), "['pause', 'pause'] [4]"),
    ],
    ids=["no look before step 9", "a look at each step", "a pause"],
)
def test_after_a_report_the_directive_is_that_of_a_plan_with_it(
    tmp_path: Path, answer: Message, expected: str
) -> None:
    ours, theirs = channel_pair()
    process = _CONTEXT.Process(target=report_twice, args=(theirs, str(tmp_path)))
    process.start()
    theirs.close()
    while not isinstance(ours.recv(), Reported):
        pass
    ours.send(answer)
    while not isinstance(end := ours.recv(), Raised):
        pass
    assert end.line == expected
    ours.close()
    process.join()
