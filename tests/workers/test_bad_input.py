"""What cannot be carried out gets one sentence that says what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

import optuna_deadline
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.cli import app
from optuna_deadline.elastic import prepare
from optuna_deadline.elastic.arguments import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study import agreement
from optuna_deadline.worker import devices
from optuna_deadline.worker.devices import Offer, make_offer


def objective(trial: optuna.Trial) -> float:
    return 0.0


def _holding_a_lock() -> Callable[[optuna.Trial], float]:
    lock = threading.Lock()
    return lambda trial: float(lock.locked())


def test_no_slots() -> None:
    for wanted in ({}, {"cpus": 0}):
        with pytest.raises(DeadlineError, match="slots"):
            make_offer(**wanted)
    with pytest.raises(DeadlineError, match="positive number of slots, but got -1"):
        make_offer(cpus=-1)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "present_gpus", lambda: [0, 1])
    assert make_offer(gpus="all") == Offer(gpus=(0, 1))
    assert make_offer(gpus="1").devices == make_offer(gpus=1).devices == ["gpu:0"]
    assert make_offer(gpu_ids="1").devices == make_offer(gpu_ids=[1]).devices == ["gpu:1"]
    with pytest.raises(DeadlineError, match=r"gpus asks for 4 GPUs, more than this machine has"):
        make_offer(gpus=4)
    with pytest.raises(DeadlineError, match="both select GPUs"):
        make_offer(gpus=1, gpu_ids="1")
    with pytest.raises(DeadlineError, match=r"no GPU 7 on this machine \(it has: 0, 1\)"):
        make_offer(gpu_ids="0,7")
    with pytest.raises(
        DeadlineError, match="a number of GPUs such as 2, not '0,1'; gpu_ids selects single ones"
    ):
        make_offer(gpus="0,1")
    with pytest.raises(DeadlineError, match="indices of GPUs such as 0,3, not 'zero'"):
        make_offer(gpu_ids="zero")
    monkeypatch.setattr(devices, "present_gpus", list)
    with pytest.raises(DeadlineError, match="no GPU that the driver lists; use cpus"):
        make_offer(gpus="all")


def test_no_more_cpu_slots_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "own_cores", lambda: 2)
    with pytest.raises(
        DeadlineError, match=r"64 CPU slots, .*\(2\): .*add WorkerOptions\(oversubscribe=True"
    ):
        make_offer(cpus=64)
    assert make_offer(cpus=64, oversubscribe=True).size == 64


def test_only_the_gpus_that_were_left_to_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.present_gpus() == [0, 1, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 0")
    assert devices.present_gpus() == [0, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.present_gpus() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "has no deadline yet: pass deadline="),
        ({"deadline": "-5s"}, "5s"),
        ({"deadline": "2020-01-01T00:00:00+00:00"}, "passed"),
        ({"deadline": "2030-01-01T00:00:00"}, "zone"),
        ({"deadline": "1h", "policy": "magic"}, "'hypersched'"),
        ({"deadline": "1h", "policy": "fifo:min_resource=0"}, "min_resource"),
        ({"deadline": "1h", "policy": "fifo:min_resource=9,max_resource=3"}, "max_resource"),
        ({"deadline": "1h", "policy": "fifo:reduction_factor=1"}, "reduction_factor"),
        ({"deadline": "1h", "policy": "fifo:n_trials=1", "n_trials": 2}, "give one of them"),
        ({"deadline": "1h", "cpus": 0}, "A worker with 0 slots cannot train"),
        ({"deadline": "1h", "worker": {"keep_warm": 2}}, "worker must be WorkerOptions"),
    ],
)
def test_run_refuses_in_words(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optuna_deadline.run(optuna.create_study(), objective, **{"cpus": 1, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "nofile.py:objective"}, "There is no file nofile.py"),
        ({"objective": "objective"}, "is not an objective"),
        ({"cpus": 0}, "A worker with 0 slots cannot train"),
        ({"cpus": "2"}, "cpus must be a positive number of slots, but got '2'"),
        ({"objective": None}, "None is not an objective: give a function of a trial"),
        ({"objective": _holding_a_lock()}, r"cannot be sent .*\(cannot pickle '_thread.lock'"),
        ({"worker": {"storage": "nonsense"}}, "write one such as sqlite:///table.db"),
        ({"cpus": None}, "name some with gpus='all' or cpus=2"),
        ({"worker": {"weight": 0}}, "weight must be a positive number"),
        ({"worker": {"sharing": "odd"}}, "no sharing 'odd'"),
        ({"worker": {"hang_timeout": 0}}, "hang_timeout must be a positive number of seconds"),
        ({"worker": {"keep_warm": -1}}, "keep_warm must be a number of trials"),
        ({"worker": {"max_slots": 0}}, "max_slots must be a number of slots such as 1, but got 0"),
        (
            {"worker": {"max_slots": -1}},
            "max_slots must be a number of slots such as 1, but got -1",
        ),
        (
            {"worker": {"max_slots": "two"}},
            "max_slots must be a number of slots such as 1, but got 'two'",
        ),
        (
            {"worker": {"max_slots": True}},
            "max_slots must be a number of slots such as 1, but got True",
        ),
        ({"worker": {"cpus": 2}}, "cpus is 1, and WorkerOptions has cpus=2: give one of them"),
        (
            {"worker": {"max_slots": 1}, "deadline": None},
            "has no deadline yet: pass deadline='2h'",
        ),
        ({"worker": {"max_time": "soon"}}, "'soon' is not a deadline"),
        (
            {"checkpoints": __file__},
            "No checkpoint can be written to .*: name another folder with checkpoints=",
        ),
        (
            {"budget": 9, "price": {"a": 1}},
            r"this host says none: name it with WorkerOptions\(host_type",
        ),
    ],
)
def test_a_run_that_is_refused_fixes_no_deadline(arguments: dict[str, Any], message: str) -> None:
    study = optuna.create_study()
    with pytest.raises(DeadlineError, match=message):
        options = WorkerOptions(**arguments.get("worker", {}))
        given = {"objective": objective, "cpus": 1, "deadline": "1h", **arguments}
        optuna_deadline.run(study, **{**given, "worker": options})
    assert agreement.read(open_table(study), study) is None


def test_more_slots_for_a_trial_than_there_are_limit_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prepare(objective, WorkerOptions(cpus=2, max_slots=2))
    assert caplog.messages == []
    prepare(objective, WorkerOptions(cpus=2, max_slots=64))
    assert caplog.messages == [
        "max_slots is 64 and there are 2 slots here: it has no effect until other workers join."
    ]


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite://"])
def test_sql_in_memory_is_refused(url: str) -> None:
    study = optuna.create_study(storage=url)
    with pytest.raises(DeadlineError, match=r"create the study without storage=, or with a file"):
        agree(study, "1h")


def test_several_objectives_are_refused() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(DeadlineError, match="objective"):
        optuna_deadline.run(study, objective, cpus=1, deadline="1h")


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["status", "s", "--storage", "nonsense"], 2, "not a database"),
        (
            ["status", "s", "--storage", "sqlite:///{folder}/s.db"],
            2,
            "There is no database {folder}/s.db: check --storage",
        ),
        (
            ["create", "s", "--storage", "postgresql://127.0.0.1:1/s", "--deadline", "1h"],
            1,
            "The database does not answer",
        ),
        (["create", "s", "--storage", "sqlite:///{folder}/s.db", "--deadline", "soon"], 2, "soon"),
        (
            ["create", "s", "--storage", "sqlite:///{folder}/s.db", "--deadline", "1h",
             "--policy", "magic"],
            2,
            "hypersched",
        ),
    ],
)  # fmt: skip
def test_commands_answer_in_one_sentence(
    command: list[str], code: int, message: str, tmp_path: Path
) -> None:
    words = [word.format(folder=tmp_path) for word in command]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.stderr
    assert message.format(folder=tmp_path) in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_creating_twice_joins_and_another_deadline_is_a_conflict(tmp_path: Path) -> None:
    command = ["create", "s", "--storage", f"sqlite:///{tmp_path}/s.db", "--deadline"]
    runner = CliRunner()
    assert runner.invoke(app, [*command, "1h"]).exit_code == 0
    assert runner.invoke(app, [*command, "1h"]).exit_code == 0
    conflict = runner.invoke(app, [*command, "2h"])
    assert conflict.exit_code == 2
    assert runner.invoke(app, ["set", *command[1:], "2h"]).exit_code == 0


def test_a_name_is_no_study() -> None:
    with pytest.raises(DeadlineError, match=r"'train' is not a study: pass optuna\.create_study"):
        optuna_deadline.run("train", lambda trial: 0.0, cpus=1, deadline="1h")  # type: ignore[arg-type]
