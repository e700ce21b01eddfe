"""At the user's limit of processes, what has to start waits, and no trial is failed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from by_hand import Hand, faked
from tables import table_of

from optuna_deadline.checkpoints.files import checksum, write_checked
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study.terms import Given

#: Three forks of a rank are refused in the process that forks.
OBJECTIVE = """
import errno, os
allowed, refused = os.fork, []

def fork():
    if len(refused) < 3:
        refused.append(1)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return allowed()

os.fork = fork

def objective(trial):
    trial.report(0.5, 1)
    return 0.5
"""


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Hand]:
    with faked() as (clock, _):
        yield Hand(clock, tmp_path, deadline=100_000.0)


@pytest.mark.slow
def test_a_fork_that_the_system_refuses_is_tried_again_and_counts_for_no_trial(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "limited.py").write_text(OBJECTIVE)
    study = optuna.create_study(storage=sqlite_url, direction="maximize")
    terms = agree(study, "60s", Given("fifo", {"n_trials": 1}))
    objective = f"{tmp_path}/limited.py:objective"
    ElasticWorker(study, objective, terms, WorkerOptions(cpus=1, checkpoints=tmp_path)).run()
    [row] = table_of(study).trials()
    assert (row.state, row.fence, row.failures) == ("complete", 1, 0)
    lines = [line for line in caplog.messages if "no more processes" in line]
    assert len(lines) == 1


def test_a_rank_that_waits_for_its_fork_is_waited_for_until_it_has_to_leave(hand: Hand) -> None:
    hand.fork_server.answers = False
    server, number = hand.fork_server, hand.open()
    hand.plan(number)
    hand.turn()
    for _ in range(30):
        server.outgoing.send(("waits", hand.key(number), 0))
        hand.turn(1.0)
    assert hand.fork_server is server and hand.state(number) == ("running", None)
    hand.plan(number, "pause")
    for _ in range(12):
        if hand.fork_server is server:
            server.outgoing.send(("waits", hand.key(number), 0))
        hand.turns(2, 0.5)
    assert hand.fork_server is not server
    hand.turns(2)
    assert hand.state(number)[0] == "paused" and hand.table.trials()[0].failures <= 1


def test_a_fork_server_that_cannot_be_replaced_yet_is_replaced_later(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, refused = hand.fork_server, [0]
    replacement = dead.replacement

    def made() -> Any:
        refused[0] += 1
        if refused[0] < 9:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return replacement()

    monkeypatch.setattr(dead, "replacement", made)
    dead.alive = False
    hand.turns(8)
    assert hand.fork_server is dead
    hand.turn()
    assert hand.fork_server is not dead


def test_a_checkpoint_is_written_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    path = tmp_path / "state"
    assert write_checked(path, lambda file: file.write_bytes(b"state")) == checksum(path)
