"""What an objective passes concerns its trial alone, and what cannot travel is refused there."""

from __future__ import annotations

import enum
import json
import math
import multiprocessing
import os
import pickle
import signal
import time
from contextlib import suppress
from datetime import datetime
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.exceptions import UpdateFinishedTrialError

from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank.channel import channel_pair
from optuna_deadline.rank.encoding import as_data, packed, restored_choice, unpacked
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.messages import (
    Answered,
    Directed,
    LastStep,
    Leaves,
    Message,
    PassOn,
    Question,
    Reported,
    Trusted,
)
from optuna_deadline.rank.trial import RankSegment, RankTrial


class Plain(enum.Enum):
    A = "a"


class Named(str, enum.Enum):
    A = "a"
    B = "b"


class Recorder:
    """A link that keeps what is said."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


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
    assert link.sent == []


def _pass_on_and_connect(raw: Any, leader: Any, connected: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    link = Link(raw, time.monotonic() + 100, 1.0, "remote")
    connected.wait()
    link.connect_leader(leader)
    time.sleep(100)
    os._exit(0)


def test_that_a_worker_leaves_is_said_once_the_rank_reaches_its_leader() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = channel_pair()
    leader, far = channel_pair()
    connected = context.Event()
    process = context.Process(target=_pass_on_and_connect, args=(theirs, far, connected))
    process.start()
    try:
        ours.send(PassOn(Leaves("asked to leave")))
        ours.send(Trusted(time.monotonic() + 100))
        connected.set()
        assert leader.poll(20)
        assert leader.recv() == Leaves("asked to leave")
        assert not ours.poll()
    finally:
        process.kill()
        process.join()


class Payload:
    """Code that runs where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/never",)


MESSAGES: list[Any] = [
    Question(1, "suggest_categorical", ("x", (1, 2.5, None, True, "é\ud800")), {"a": [1, ()]}),
    Answered(1, True, {3: {"low": math.inf}, "b": -0.0, "big": 2**70}),
    Answered(2, True, datetime(2026, 1, 2, 3, 4, 5, 6)),
    Answered(3, True, {"lr": FloatDistribution(0.0001, 1.0, log=True)}),
    Directed(Directive(Kind.STOP, "why", 3, True, False)),
    Reported(0.1 + 0.2, 3, 1e-300),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_arrives_as_it_was_sent(message: Any) -> None:
    assert unpacked(packed(message, "x")) == message


@pytest.mark.parametrize(
    ("error", "there"),
    [
        (ValueError("no"), ValueError("no")),
        (KeyError("name"), KeyError("name")),
        (UpdateFinishedTrialError("late"), UpdateFinishedTrialError("late")),
        (SystemExit(3), RuntimeError("SystemExit: 3")),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), RuntimeError),
        (type("Own", (Exception,), {})("mine"), RuntimeError("Own: mine")),
    ],
)
def test_an_error_arrives_as_one_that_every_process_has(error: Any, there: Any) -> None:
    found = unpacked(packed(Answered(1, False, error))).value
    if there is RuntimeError:
        assert type(found) is RuntimeError
    else:
        assert (type(found), found.args) == (type(there), there.args)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Payload()), b"", b"\xff", b"{}", b'{"dict": 3}', b'{"os": "system"}',
        b'{"directive": ["keep"]}', b'{"time": 3}', b'{"tuple": [], "list": []}',
        b'{"distribution": "{}"}', b'{"Reported": [0.5]}', b'{"LastStep": ["3"]}',
        b'{"Limited": [0, "x"]}', b'{"Message": [1]}', b"[" * 100_000, b'{"dict": [[[], 1]]}',
    ],
)  # fmt: skip
def test_what_is_no_message_is_a_value_error_and_runs_nothing(content: bytes) -> None:
    with pytest.raises(ValueError):
        unpacked(content)
    assert not os.path.exists("/tmp/never")


def test_a_wait_sees_each_message_that_was_not_read() -> None:
    """A rank may send its first request together with its greeting."""
    ours, theirs = channel_pair()
    for number in range(3):
        theirs.send(LastStep(number))
    for number in range(3):
        assert wait([ours], 5) == [ours]
        assert ours.recv() == LastStep(number)
    assert not wait([ours], 0) and not ours.poll()


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple)
    | st.dictionaries(st.text() | st.integers(), inner),
))  # fmt: skip
def test_any_plain_data_arrives_as_it_was_sent(data: Any) -> None:
    assert unpacked(packed(Answered(1, True, data))).value == data


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | st.builds(
    lambda kind, content: json.dumps({kind: content}).encode(),
    st.sampled_from(["tuple", "dict", "time", "distribution", "directive", "error"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=12,
    ),
))  # fmt: skip
def test_no_bytes_do_anything_but_arrive_or_raise_a_value_error(content: bytes) -> None:
    with suppress(ValueError):
        unpacked(content)
