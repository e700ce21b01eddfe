"""Which parked processes go on, on which slot, and which are ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe

import pytest

from optuna_deadline.allocation.records import Desired, Grant
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank import link
from optuna_deadline.worker.parking import Parking
from optuna_deadline.worker.segment import Gang, Rank

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
        rank = Rank(0, Pipe()[0], pid=made[-1].pid, born=fence)
        rank.process = made[-1]  # type: ignore[attr-defined]
        return Gang(grant, 0, 0.0, ranks=[rank])

    yield make
    for process in made:
        process.kill()
        process.wait()


def line(number: int, mode: str = "pause", fence: int = 3, slots: int = 0) -> Desired:
    return Desired(
        number, number, "paused", fence, None, mode, "me", slots, "", 0.0, None, None, False, 0
    )


def lives(gang: Gang) -> bool:
    try:
        gang.ranks[0].process.wait(0.3)  # type: ignore[attr-defined]
    except subprocess.TimeoutExpired:
        return True
    return False


def test_only_those_that_the_plan_still_has_here_under_their_fence_wait_on(gang: Park) -> None:
    parking = Parking(5, alike=False)
    kept, retired, trained_elsewhere = gang(0), gang(1), gang(2)
    for one in (kept, retired, trained_elsewhere):
        parking.take_in(one)
    parking.follow([line(0), line(2, fence=4)])
    assert [lives(one) for one in (kept, retired, trained_elsewhere)] == [True, False, False]
    assert set(map(id, parking.gangs)) == {id(kept), id(retired), id(trained_elsewhere)}
    for one in (retired, trained_elsewhere):
        one.ranks[0].exit_code = -9
    parking.follow([line(0)])
    assert parking.gangs == [kept]
    parking.clear()
    assert not lives(kept)


def test_a_gpus_process_goes_on_there_and_a_cpus_anywhere(gang: Park) -> None:
    for alike in (False, True):
        parking = Parking(5, alike=alike)
        parking.take_in(gang(0, slot=7))
        run = line(0, "run", slots=1)
        assert parking.slot_for(run, [5, 7, 9]) == 7
        assert parking.slot_for(run, [5, 9]) == (5 if alike else None)
        assert parking.slot_for(line(0, "run", slots=2), [5, 7, 9]) is None
        assert parking.slot_for(line(0, "run", slots=1, fence=4), [7]) is None
        assert parking.slot_for(line(1, "run", slots=1), [7]) is None
        assert parking.order([5, 7, 9]) == [5, 9, 7]


def test_as_many_may_stay_as_were_allowed_and_only_single_ones_that_are_paused(
    gang: Park,
) -> None:
    pause = Directive(Kind.PAUSE, "its turn is over")
    parking = Parking(2, alike=True)
    parking.take_in(gang(0))
    one, other = gang(1), gang(2)
    assert not parking.permit(Directive(Kind.RESIZE), one, []).park
    assert not parking.permit(Directive(Kind.STOP), one, []).park
    assert not parking.permit(pause, gang(3, slots=2), []).park
    told = parking.permit(pause, one, [one, other])
    assert told.park and told.reason == pause.reason
    one.direct(told)
    assert one.directive.park
    assert not parking.permit(pause, other, [one, other]).park
    assert not Parking(0, alike=True).permit(pause, one, []).park


def test_a_frozen_one_is_ended_before_its_pipe_is_full(
    gang: Park, monkeypatch: pytest.MonkeyPatch
) -> None:
    parking = Parking(2, alike=True)
    frozen, waiting = gang(0), gang(1)
    frozen.heard_at, waiting.heard_at = 100.0, 140.0
    for one in (frozen, waiting):
        parking.take_in(one)
    monkeypatch.setattr("optuna_deadline.worker.parking.time.monotonic", lambda: 161.0)
    parking.follow([line(0), line(1)])
    monkeypatch.undo()
    assert not lives(frozen) and lives(waiting)


def test_a_parked_rank_says_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Pipe()
    monkeypatch.setattr(link, "_SIGN_OF_LIFE", 0.0)
    monkeypatch.setattr(link.Link, "_trust", lambda self, until: None)
    monkeypatch.setattr(link.Link, "_read", lambda *_: None)
    rank = link.Link(theirs, float("inf"), 0.0)
    rank._granted.put((7, ("gpu:0",)))
    assert rank.next_segment(lambda: False) == (7, ("gpu:0",))
    assert not ours.poll()
    waiting = threading.Thread(target=rank.next_segment, args=(lambda: False,))
    waiting.start()
    assert ours.poll(5) and ours.recv() == ("tell", "waiting", {})
    rank._granted.put((8, ()))
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_process_that_died_is_not_counted_on(gang: Park) -> None:
    parking = Parking(2, alike=True)
    dead = gang(0)
    parking.take_in(dead)
    dead.ranks[0].closed = True
    assert parking.slot_for(line(0, "run", slots=1), [7]) is None
    parking.follow([line(0)])
    assert not lives(dead)
