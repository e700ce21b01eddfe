"""Which parked processes go on, on which slot, and which are ended."""

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
from optuna_deadline.worker.parking import ParkedProcesses
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang

Park = Callable[..., Gang]


@pytest.fixture
def gang() -> Iterator[Park]:
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


def test_only_those_that_the_plan_still_has_here_under_their_fence_wait_on(gang: Park) -> None:
    parking = ParkedProcesses(5, any_slot=False)
    kept, retired, trained_elsewhere = gang(0), gang(1), gang(2)
    for one in (kept, retired, trained_elsewhere):
        parking.park(one)
    parking.reconcile([line(0), line(2, fence=4)])
    assert [lives(one) for one in (kept, retired, trained_elsewhere)] == [True, False, False]
    assert set(map(id, parking.gangs)) == {id(kept), id(retired), id(trained_elsewhere)}
    for one in (retired, trained_elsewhere):
        one.ranks[0].exit_code = -9
    parking.reconcile([line(0)])
    assert parking.gangs == [kept]
    parking.clear()
    assert not lives(kept)


def test_a_gpus_process_goes_on_there_and_a_cpus_anywhere(gang: Park) -> None:
    for alike in (False, True):
        parking = ParkedProcesses(5, any_slot=alike)
        parking.park(gang(0, slot=7))
        run = line(0, "run", slots=1)
        assert parking.slot_for(run, [5, 7, 9]) == 7
        assert parking.slot_for(run, [5, 9]) == (5 if alike else None)
        assert parking.slot_for(line(0, "run", slots=2), [5, 7, 9]) is None
        assert parking.slot_for(line(0, "run", slots=1, fence=4), [7]) is None
        assert parking.slot_for(line(1, "run", slots=1), [7]) is None
        assert parking.least_missed_first([5, 7, 9]) == [5, 9, 7]


def test_as_many_may_stay_as_were_allowed_and_only_single_ones_that_are_paused(
    gang: Park,
) -> None:
    pause = Directive(Kind.PAUSE, "its turn is over")
    parking = ParkedProcesses(2, any_slot=True)
    parking.park(gang(0))
    one, other = gang(1), gang(2)
    assert not parking.allow_parking(Directive(Kind.RESIZE), one, []).park
    assert not parking.allow_parking(Directive(Kind.STOP), one, []).park
    assert not parking.allow_parking(pause, gang(3, slots=2), []).park
    told = parking.allow_parking(pause, one, [one, other])
    assert told.park and told.reason == pause.reason
    one.send_directive(told)
    assert one.directive.park
    assert not parking.allow_parking(pause, other, [one, other]).park
    assert not ParkedProcesses(0, any_slot=True).allow_parking(pause, one, []).park


def test_a_frozen_one_is_ended_before_its_pipe_is_full(
    gang: Park, monkeypatch: pytest.MonkeyPatch
) -> None:
    parking = ParkedProcesses(2, any_slot=True)
    frozen, waiting = gang(0), gang(1)
    frozen.last_message_at, waiting.last_message_at = 100.0, 140.0
    for one in (frozen, waiting):
        parking.park(one)
    monkeypatch.setattr("optuna_deadline.worker.parking.time.monotonic", lambda: 161.0)
    parking.reconcile([line(0), line(1)])
    monkeypatch.undo()
    assert not lives(frozen) and lives(waiting)


def test_a_parked_rank_says_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert ours.poll(5) and ours.recv() == ("tell", "waiting", {})
    rank._next_grants.put((8, ()))
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_process_that_died_is_not_counted_on(gang: Park) -> None:
    parking = ParkedProcesses(2, any_slot=True)
    dead = gang(0)
    parking.park(dead)
    dead.ranks[0].closed = True
    assert parking.slot_for(line(0, "run", slots=1), [7]) is None
    parking.reconcile([line(0)])
    assert not lives(dead)
