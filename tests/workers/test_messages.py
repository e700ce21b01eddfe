"""What an objective passes concerns its trial alone, and what cannot travel is refused there."""

from __future__ import annotations

import enum
import multiprocessing
import os
import signal
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from optuna_deadline.rank.link import Link
from optuna_deadline.rank.messages import as_data, restored_choice
from optuna_deadline.rank.trial import RankSegment, RankTrial


class Plain(enum.Enum):
    A = "a"


class Named(str, enum.Enum):
    A = "a"
    B = "b"


class Recorder:
    """A link that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notify(self, what: str, **_: Any) -> None:
        self.said.append(what)


def segment_of(link: Any, folder: Path) -> RankSegment:
    return RankSegment(
        link, rank=0, world_size=1, fence=1, folder=folder, resume=None, direction="minimize"
    )


def test_plain_python_objects_travel() -> None:
    sent = {"a": (1, 2.5, None), "b": [True, "text"]}
    assert as_data(sent, "set_user_attr") == sent
    numpy = as_data([np.float32(0.5), np.int64(3), np.float64(0.25), np.bool_(True)], "x")
    assert numpy == [0.5, 3, 0.25, True]
    assert [type(each) for each in numpy] == [float, int, float, bool]


@pytest.mark.parametrize("value", [object(), Plain.A, np.zeros(3), {"key": [Plain.A]}])
def test_anything_else_is_refused_with_what_to_pass(value: Any) -> None:
    with pytest.raises(TypeError, match=r"set_user_attr takes numbers, text.* float\(value\)"):
        as_data(value, "set_user_attr")


def test_a_choice_that_is_also_text_comes_back_as_it_was_given() -> None:
    assert type(as_data(Named.B, "x")) is str
    assert restored_choice([Named.A, Named.B], "b", "x") is Named.B
    assert restored_choice([1, True], True, "x") is True


@pytest.mark.parametrize("step", [2**31, -1])
@pytest.mark.parametrize("say", ["report", "horizon", "save"])
def test_a_step_that_no_database_keeps_is_refused(tmp_path: Path, say: str, step: int) -> None:
    link = Recorder()
    segment = segment_of(link, tmp_path)
    with pytest.raises(ValueError, match="A step must be from 0 to 2,147,483,647, but got"):
        if say == "report":
            RankTrial(cast(Link, link), segment, 0).report(0.5, step)
        elif say == "horizon":
            segment.horizon(step)
        else:
            segment.save(lambda path: path.write_text("x"), step=step)
    assert link.said == []


def _pass_on_and_connect(raw: Any, leader: Any, connected: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    link = Link(raw, time.monotonic() + 100, 1.0, "remote")
    connected.wait()
    link.connect_leader(leader)
    time.sleep(100)
    os._exit(0)


def test_that_a_worker_leaves_is_said_once_the_rank_reaches_its_leader() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = Pipe()
    leader, far = Pipe()
    connected = context.Event()
    process = context.Process(target=_pass_on_and_connect, args=(theirs, far, connected))
    process.start()
    try:
        ours.send(("pass on", "leaving", {"why": "asked to leave"}))
        ours.send(("trust", time.monotonic() + 100))
        connected.set()
        assert leader.poll(20)
        assert leader.recv() == ("tell", "leaving", {"why": "asked to leave"})
        assert not ours.poll()
    finally:
        process.kill()
        process.join()
