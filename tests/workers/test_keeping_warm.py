"""A paused trial whose process waits in its worker's memory: it comes back, or it is ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import optuna
import pytest
from endings import end_within
from forked import WorkerProcess
from tables import running, table_of, wait_until
from typer.testing import CliRunner

from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli import app
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"postgres|frozen|two_slots|no_more")]
Start = Callable[..., WorkerProcess]


class Step(NamedTuple):
    number: int
    step: int
    pid: int
    fence: int


def ask(words: str, url: str) -> None:
    asked = CliRunner().invoke(app, [*words.split(), "--storage", url])
    assert asked.exit_code == 0, asked.output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "steps"


def steps(log: Path, number: int = 0) -> list[Step]:
    if not log.exists():
        return []
    lines = [Step(*map(int, line.split())) for line in log.read_text().splitlines()]
    return [line for line in lines if line.number == number]


def none_lost_and_none_repeated(log: Path, number: int = 0) -> None:
    made = [step.step for step in steps(log, number)]
    assert made == list(range(len(made)))


def warm(table: AllocationTable, number: int = 0) -> bool:
    """Whether a trial's slot is free and its process is warm."""
    rows = [row for row in table.segments() if row.number == number]
    line = next(line for line in table.trials() if line.number == number)
    return (line.state, line.owner) == ("paused", None) and rows[-1].outcome == "warm"


def begin(
    study: optuna.Study,
    url: str,
    start_worker: Start,
    log: Path,
    n_trials: int = 1,
    **job: object,
) -> tuple[AllocationTable, WorkerProcess, int]:
    """A worker that may keep a trial warm, one trial that is warm, and the trial's process."""
    agree(study, "10m", Given("fifo", {"n_trials": n_trials}))
    table = table_of(study)
    worker = start_worker(url, "staying", RANK_LOG=str(log), **{"keep_warm": 1, **job})
    wait_until(lambda: len(steps(log)) > 5)
    ask("steer 0 --pause --study study", url)
    wait_until(lambda: warm(table))
    pid = steps(log)[-1].pid
    assert running(pid)
    if n_trials == 1:
        assert all(slot.holder is None for slot in table.slots())
    return table, worker, pid


def test_it_comes_back_in_the_same_process_without_losing_or_repeating_a_step(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path
) -> None:
    table, worker, pid = begin(study, storage_url, start_worker, log)
    for fence in (2, 3, 4):
        [saved] = table.checkpoints(0)[:1]
        assert saved.step == steps(log)[-1].step  # all of it is durable while it is warm
        ask("steer 0 --resume --study study", storage_url)
        wait_until(lambda fence=fence: steps(log)[-1].fence == fence)
        wait_until(lambda fence=fence: sum(s.fence == fence for s in steps(log)) > 4)
        ask("steer 0 --pause --study study", storage_url)
        wait_until(lambda: warm(table))
    assert {step.pid for step in steps(log)} == {pid}
    none_lost_and_none_repeated(log)
    assert [row.outcome for row in table.segments()] == ["warm"] * 4
    later = [row.startup for row in table.segments()[1:]]
    assert all(startup is not None and startup < 2.0 for startup in later)
    end_within(table, 2)
    assert worker.wait(60) == 0
    assert not running(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_whoever_ends_it_it_goes_on_from_its_checkpoint(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, log: Path,
    number: signal.Signals,
) -> None:  # fmt: skip
    table, _, pid = begin(sqlite_study, sqlite_url, start_worker, log)
    os.kill(pid, number)
    wait_until(lambda: not running(pid), 5)
    ask("steer 0 --resume --study study", sqlite_url)
    wait_until(lambda: sum(step.fence == 2 for step in steps(log)) > 4)
    none_lost_and_none_repeated(log)
    assert {step.pid for step in steps(log) if step.fence == 2}.isdisjoint({pid})
    assert table.trials()[0].failures == 0


def test_a_process_frozen_while_it_is_warm_dies_with_its_worker(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, log: Path
) -> None:
    _, worker, pid = begin(sqlite_study, sqlite_url, start_worker, log)
    os.kill(pid, signal.SIGSTOP)
    worker.kill()
    wait_until(lambda: not running(pid), 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_its_worker_and_goes_on_with_another(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path, number: signal.Signals
) -> None:
    _, worker, pid = begin(study, storage_url, start_worker, log, ttl=3, grace=1)
    worker.send_signal(number)
    worker.wait(30)
    wait_until(lambda: not running(pid), 5)
    start_worker(storage_url, "staying", RANK_LOG=str(log), keep_warm=1, ttl=3, grace=1)
    ask("steer 0 --resume --study study", storage_url)
    wait_until(lambda: sum(step.fence == 2 for step in steps(log)) > 4)
    none_lost_and_none_repeated(log)


def test_wanted_by_another_worker_it_goes_there_and_its_process_ends(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path
) -> None:
    """While it is warm another trial has the slot; a second worker brings one more."""
    _, first, pid = begin(study, storage_url, start_worker, log, n_trials=2)
    wait_until(lambda: len(steps(log, 1)) > 3)
    ask("steer 0 --resume --study study", storage_url)
    start_worker(storage_url, "staying", RANK_LOG=str(log), keep_warm=1)
    wait_until(lambda: any(step.fence == 2 for step in steps(log)))
    wait_until(lambda: not running(pid), 10)
    wait_until(lambda: sum(step.fence == 2 for step in steps(log)) > 4)
    none_lost_and_none_repeated(log)
    none_lost_and_none_repeated(log, 1)
    assert first.poll() is None


def test_resumed_with_two_slots_it_is_ended_and_begun_again(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, log: Path
) -> None:
    table, _, pid = begin(sqlite_study, sqlite_url, start_worker, log, cpus=2)
    ask("steer 0 --resize 2 --study study", sqlite_url)
    ask("steer 0 --resume --study study", sqlite_url)
    wait_until(lambda: any(row.fence == 2 and row.slots == 2 for row in table.segments()))
    wait_until(lambda: not running(pid), 10)
    wait_until(lambda: any(step.fence == 2 for step in steps(log)))


def test_no_more_wait_than_may_and_none_after_the_deadline(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, log: Path
) -> None:
    table, worker, pid = begin(sqlite_study, sqlite_url, start_worker, log, n_trials=2)
    wait_until(lambda: len(steps(log, 1)) > 3)
    ask("steer 1 --pause --study study", sqlite_url)
    wait_until(lambda: next(line for line in table.trials() if line.number == 1).state == "paused")
    assert [row.outcome for row in table.segments()] == ["warm", "pause"]
    assert running(pid) and not running(steps(log, 1)[-1].pid)
    end_within(table, 2)
    assert worker.wait(60) == 0
    assert not running(pid)
