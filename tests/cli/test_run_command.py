"""``run`` and its messages as JSON, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"one_command")]

_TRAIN = """
import time

def objective(trial):
    x = trial.suggest_float("x", 0.0, 1.0)
    for step in range(1, 6):
        time.sleep(0.1)
        trial.report(x + 1 / step, step)
        if trial.should_prune():
            break
    return x
"""


def run(
    folder: Path, *options: str, objective: str = "train.py:objective"
) -> subprocess.CompletedProcess[str]:
    program = "from optuna_deadline.cli import app; app()"
    return subprocess.run(
        [sys.executable, "-c", program, "run", objective, *options],
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_one_command_makes_a_study_trains_it_and_says_so_in_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_TRAIN)
    done = run(tmp_path, "--deadline", "5s", "--cpus", "2", "--log", "json")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line, parse_constant=pytest.fail) for line in done.stderr.splitlines()]
    assert records[0]["message"].startswith(
        "Working on train, which minimizes its value; deadline 5 s"
    )
    assert {record["logger"] for record in records} == {"optuna_deadline"}
    followed = [record for record in records if "seconds_to_deadline" in record]
    assert followed and all(record["slots"] in (0, 2) for record in followed)
    (outcome,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert outcome["settled"] and outcome["study"] == "train"
    assert outcome["value"] == followed[-1]["best_value"]
    assert outcome["ended"] - outcome["deadline"] < 2
    again = run(tmp_path, "--deadline", "2h", "--cpus", "2", "--log", "json")
    assert again.returncode == 2
    (error,) = [json.loads(line) for line in again.stderr.splitlines()]
    assert error["level"] == "error" and "asks for 2 h" in error["message"]


def test_a_study_begins_with_what_was_best_in_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_TRAIN)
    url = f"sqlite:///{tmp_path}/study.db"
    before = optuna.create_study(study_name="before", storage=url)
    before.enqueue_trial({"x": 0.123})
    before.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=1)
    place = ("--study", "now", "--deadline", "10s", "--cpus", "1")
    typo = run(tmp_path, *place, objective="train.py:objectiv")
    assert typo.returncode == 2 and "has no objective 'objectiv'" in typo.stderr
    assert optuna.get_all_study_names(url) == ["before"]  # no clock has started
    gone = run(tmp_path, *place, "--warm-start-from", "befor")
    assert gone.returncode == 2 and "no earlier study 'befor' beside 'now'" in gone.stderr
    done = run(tmp_path, *place, "--warm-start-from", "before")
    assert done.returncode == 0, done.stderr
    trials = optuna.load_study(study_name="now", storage=url).trials
    assert trials[0].params == {"x": 0.123} != trials[1].params


def test_a_study_without_any_value_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\n\ndef objective(_):\n    time.sleep(60)\n")
    done = run(tmp_path, "--deadline", "3s", "--cpus", "1")
    assert done.returncode == 1 and "ended without a value" in done.stdout, done.stderr
