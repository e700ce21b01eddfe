"""A worker with an end of its own: it saves and leaves before, and the study goes on."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import objectives
import optuna
import psutil
import pytest
from tables import table_of, wait_until

import optuna_deadline
from benchmarks.stretches import OBJECTIVE
from benchmarks.stretches.objective import LOGS
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import Overhead
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study.terms import Given
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.time_limit import WorkerTimeLimit


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_LOG", str(tmp_path / "ranks"))
    monkeypatch.setenv(LOGS, str(tmp_path))
    monkeypatch.setenv("OPTUNA_DEADLINE_HOST", "here")


def test_it_leaves_the_earlier_the_longer_leaving_takes() -> None:
    until = WorkerTimeLimit(time.monotonic() + 60, Overhead(startup=2, stop=1))
    assert not until.must_leave(1.0) and not until.accepts_no_segments(1.0)
    assert until.must_leave(40.0)  # 65 s are needed
    assert until.accepts_no_segments(35.5) and not until.must_leave(35.5)  # 58 s, and two to start
    assert not WorkerTimeLimit().must_leave(1e9) and not WorkerTimeLimit().accepts_no_segments(1e9)


def test_a_slow_step_is_waited_for() -> None:
    """Who reports every 40 s hears of it so late, too."""
    until = WorkerTimeLimit(time.monotonic() + 60)
    gang = Gang.__new__(Gang)
    gang.longest_silence = 40.0
    until.observe_silence([gang])
    assert until.must_leave(1.0)


def test_a_study_that_ends_before_is_ended_here() -> None:
    now = time.monotonic()
    until = WorkerTimeLimit(now + 6)
    assert until.must_leave(1.0, deadline=math.inf) and until.must_leave(1.0, deadline=now + 4)
    assert not until.must_leave(1.0, deadline=now + 0.5)


@pytest.mark.parametrize("until", ["3s", "2020-01-01T00:00Z"])
def test_no_time_to_train_is_said_at_once(
    sqlite_study: optuna.Study, tmp_path: Path, until: str
) -> None:
    with pytest.raises(DeadlineError, match=r"saving its trials and leaving may take 5\.8 s"):
        optuna_deadline.run(
            sqlite_study,
            objectives.slow,
            cpus=1,
            deadline="60s",
            checkpoints=tmp_path,
            worker=optuna_deadline.WorkerOptions(max_time=until),
        )


@pytest.mark.slow
def test_its_trials_are_saved_before_and_another_worker_goes_on(
    sqlite_study: optuna.Study, tmp_path: Path
) -> None:
    terms = agree(sqlite_study, "100s", Given("fifo"))
    began = time.monotonic()
    first = ElasticWorker(
        sqlite_study,
        objectives.slow,
        terms,
        WorkerOptions(cpus=1, checkpoints=tmp_path, max_time="13s"),
    )
    result = first.run()
    assert 3 < time.monotonic() - began < 13
    assert not result.settled and first.reached_time_limit
    table = table_of(sqlite_study)
    [line] = table.trials()
    assert (line.state, line.owner, table.workers()) == ("paused", None, [])
    last = max(row.step for row in table.reports())
    assert table.checkpoints(line.number)[0].step == last, "no step is lost"


@pytest.mark.slow
def test_sigterm_to_every_process_loses_no_step(
    sqlite_url: str, sqlite_study: optuna.Study, tmp_path: Path
) -> None:
    """As SLURM and systemd send it; the command exits with 75 after its time limit."""
    agree(sqlite_study, "100s", Given("fifo"))
    table = table_of(sqlite_study)
    words = [
        "worker", OBJECTIVE, "--study", sqlite_study.study_name, "--cpus", "1",
        "--storage", sqlite_url, "--checkpoints", str(tmp_path), "--no-dashboard",
    ]  # fmt: skip
    program = [sys.executable, "-c", "from optuna_deadline.cli import app; app()", *words]
    with subprocess.Popen(program) as worker:
        wait_until(lambda: [row.step for row in table.reports()][-1:] == [6])  # 4 was saved
        for process in [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(True)]:
            os.kill(process.pid, signal.SIGTERM)
        worker.send_signal(signal.SIGTERM)  # again: it goes on saving
        assert worker.wait(20) == 130
    last = max(row.step for row in table.reports())
    assert table.checkpoints(0)[0].step == last
    assert [row.outcome for row in table.segments()] == ["shutdown"]
    assert subprocess.run([*program, "--max-time", "12s"], timeout=300).returncode == 75
