"""Which warm processes go on, on which slot, and which are ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from optuna_deadline.allocation.records import Grant, PlannedTrial
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank import link
from optuna_deadline.rank.channel import channel_pair
from optuna_deadline.rank.messages import Waits
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.warm_processes import WarmProcesses

Keep = Callable[..., Gang]


@pytest.fixture
def gang() -> Iterator[Keep]:
    """Makes gangs of one real process each."""
    made: list[subprocess.Popen[bytes]] = []

    def make(number: int, slot: int = 7, fence: int = 3, slots: int = 1) -> Gang:
        sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        made.append(subprocess.Popen(sleep, start_new_session=True))
        held = tuple((slot + extra, 1) for extra in range(slots))
        grant = Grant(number, number, fence, held, ("gpu:0",) * slots)
        rank = Rank(0, channel_pair()[0], pid=made[-1].pid, forked_fence=fence)
        rank.process = made[-1]  # type: ignore[attr-defined]
        return Gang(grant, 0, 0.0, ranks=[rank])

    yield make
    for process in made:
        process.kill()
        process.wait()


def line(number: int, mode: str = "pause", fence: int = 3, slots: int = 0) -> PlannedTrial:
    return PlannedTrial(
        number, number, "paused", fence, None, mode, "me", slots, "", 0.0, None, None, False, 0
    )


def lives(gang: Gang) -> bool:
    try:
        gang.ranks[0].process.wait(0.3)  # type: ignore[attr-defined]
    except subprocess.TimeoutExpired:
        return True
    return False


def test_only_those_that_the_plan_still_has_here_under_their_fence_wait_on(gang: Keep) -> None:
    warm = WarmProcesses(5, any_slot=False)
    kept, retired, trained_elsewhere = gang(0), gang(1), gang(2)
    for one in (kept, retired, trained_elsewhere):
        warm.keep_warm(one)
    warm.reconcile([line(0), line(2, fence=4)])
    assert [lives(one) for one in (kept, retired, trained_elsewhere)] == [True, False, False]
    assert set(map(id, warm.gangs)) == {id(kept), id(retired), id(trained_elsewhere)}
    for one in (retired, trained_elsewhere):
        one.ranks[0].exit_code = -9
    warm.reconcile([line(0)])
    assert warm.gangs == [kept]
    warm.clear()
    assert not lives(kept)


def test_a_gpus_process_goes_on_there_and_a_cpus_anywhere(gang: Keep) -> None:
    for alike in (False, True):
        warm = WarmProcesses(5, any_slot=alike)
        warm.keep_warm(gang(0, slot=7))
        run = line(0, "run", slots=1)
        assert warm.slot_for(run, [5, 7, 9]) == 7
        assert warm.slot_for(run, [5, 9]) == (5 if alike else None)
        assert warm.slot_for(line(0, "run", slots=2), [5, 7, 9]) is None
        assert warm.slot_for(line(0, "run", slots=1, fence=4), [7]) is None
        assert warm.slot_for(line(1, "run", slots=1), [7]) is None
        assert warm.least_missed_first([5, 7, 9]) == [5, 9, 7]


def test_as_many_may_stay_as_were_allowed_and_only_single_ones_that_are_paused(
    gang: Keep,
) -> None:
    pause = Directive(Kind.PAUSE, "its turn is over")
    warm = WarmProcesses(2, any_slot=True)
    warm.keep_warm(gang(0))
    one, other = gang(1), gang(2)
    assert not warm.allow_keeping_warm(Directive(Kind.RESIZE), one, []).keep_warm
    assert not warm.allow_keeping_warm(Directive(Kind.STOP), one, []).keep_warm
    assert not warm.allow_keeping_warm(pause, gang(3, slots=2), []).keep_warm
    told = warm.allow_keeping_warm(pause, one, [one, other])
    assert told.keep_warm and told.reason == pause.reason
    one.send_directive(told)
    assert one.directive.keep_warm
    assert not warm.allow_keeping_warm(pause, other, [one, other]).keep_warm
    assert not WarmProcesses(0, any_slot=True).allow_keeping_warm(pause, one, []).keep_warm


def test_a_frozen_one_is_ended_before_its_pipe_is_full(
    gang: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = WarmProcesses(2, any_slot=True)
    frozen, waiting = gang(0), gang(1)
    frozen.last_message_at, waiting.last_message_at = 100.0, 140.0
    for one in (frozen, waiting):
        warm.keep_warm(one)
    monkeypatch.setattr("optuna_deadline.worker.warm_processes.time.monotonic", lambda: 161.0)
    warm.reconcile([line(0), line(1)])
    monkeypatch.undo()
    assert not lives(frozen) and lives(waiting)


def test_a_warm_rank_says_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = channel_pair()
    monkeypatch.setattr(link, "_HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(link.Link, "_extend_trust", lambda self, until: None)
    monkeypatch.setattr(link.Link, "_read", lambda *_: None)
    rank = link.Link(theirs, float("inf"), 0.0)
    rank._next_grants.put((7, ("gpu:0",)))
    assert rank.next_segment(lambda: False) == (7, ("gpu:0",))
    assert not ours.poll()
    waiting = threading.Thread(target=rank.next_segment, args=(lambda: False,))
    waiting.start()
    assert ours.poll(5) and ours.recv() == Waits()
    rank._next_grants.put((8, ()))
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_process_that_died_is_not_counted_on(gang: Keep) -> None:
    warm = WarmProcesses(2, any_slot=True)
    dead = gang(0)
    warm.keep_warm(dead)
    dead.ranks[0].closed = True
    assert warm.slot_for(line(0, "run", slots=1), [7]) is None
    warm.reconcile([line(0)])
    assert not lives(dead)
