"""No trial is opened for an objective that does not load, and the study ends as it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from tables import running, wait_until

import optuna_deadline
from optuna_deadline._threads import PeriodicThread
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.elastic import background
from optuna_deadline.errors import DeadlineError
from optuna_deadline.study import agreement

ENDLESS = """
import os, pathlib, time
pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
time.sleep(600)
def objective(trial):
    return 1.0
"""
BROKEN = """
import time
time.sleep(2)
raise RuntimeError("there is no data here")
"""
KEEPER = """
import sys, time
from optuna_deadline.rank.objective import source_of
from optuna_deadline.rank.fork_server import ForkServer
kept = ForkServer(source_of(sys.argv[1]))
time.sleep(600)
"""


def test_planning_begins_when_the_objective_is_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_IMPORT_WARNING_SECONDS", -1.0)
    agent: Any = SimpleNamespace(ready=False, closing=False)
    planner = PeriodicThread("planner", lambda: 60.0)
    look = background.planner_starter(planner, agent)
    look()
    look()
    assert planner.ident is None
    assert caplog.text.count("The objective is not loaded after") == 1
    agent.ready = True
    look()
    look()
    assert planner.ident is not None
    planner.stop(10)


def test_planning_begins_at_the_studys_end_without_an_objective() -> None:
    agent: Any = SimpleNamespace(ready=False, closing=False)
    planner = PeriodicThread("planner", lambda: 60.0)
    look = background.planner_starter(planner, agent)
    agent.closing = True
    look()
    assert planner.ident is not None
    planner.stop(10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "deadline", "words"),
    [(ENDLESS, "5s", "has not started: find out why its import"), (BROKEN, "5m", "no data here")],
    ids=["endless", "broken"],
)
def test_an_import_that_fails_is_an_error_and_leaves_no_trial(
    sqlite_study: optuna.Study, tmp_path: Path, source: str, deadline: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(DeadlineError, match=words):
        optuna_deadline.run(
            sqlite_study,
            f"{tmp_path}/mine.py:objective",
            cpus=1,
            deadline=deadline,
            checkpoints=tmp_path / "checkpoints",
        )
    assert sqlite_study.get_trials() == []
    assert agreement.read(open_table(sqlite_study), sqlite_study) is None  # no deadline was fixed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it takes Linux's prctl")
def test_an_import_that_does_not_end_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER, f"{tmp_path}/endless.py:objective"])
    try:
        wait_until((tmp_path / "pid").exists)
        wait_until((tmp_path / "pid").read_text)
        pid = int((tmp_path / "pid").read_text())
        assert running(pid)
    finally:
        keeper.kill()
        keeper.wait()
    wait_until(lambda: not running(pid))
