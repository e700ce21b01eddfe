"""``optuna-deadline status --pool``: studies, weights, shares and slots in words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import optuna
import pytest
from typer.testing import CliRunner

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Assignment, StudyClaim
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli import app
from optuna_deadline.elastic import agree


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with two studies in a pool, one of them in training."""
    url = f"sqlite:///{tmp_path}/study.db"
    for name, weight in (("resnet", 3.0), ("bert", None)):
        study = optuna.create_study(study_name=name, storage=url)
        agree(study, "1h")
        table = AllocationTable(open_table(study), "lab", study._study_id)
        table.register(name, "node7", 4711, ["gpu:0", "gpu:1"], 0, weight)
    table = AllocationTable(open_table(study), "lab", 1)
    term, led = table.elect_planner("resnet"), table.elect_leader("resnet")
    assert term is not None and led is not None
    table.open_trial("resnet", term, 0, 0)
    table.write_plan("resnet", term, [Assignment(0, "run", "resnet", 1, "test")])
    assert table.acquire("resnet", 0, [1]) is not None
    table.lend("resnet", led, {2: 2}, {})
    return url


def test_a_pool_is_shown_with_its_studies_and_slots(url: str) -> None:
    shown = CliRunner().invoke(app, ["status", "--pool", "--storage", url])
    assert shown.exit_code == 0, shown.output
    assert "pool lab: 2 slots, 1 in use, 2 workers" in shown.output
    words = [line.split() for line in shown.output.splitlines()]
    [resnet] = [line for line in words if line[:1] == ["resnet"]]
    assert resnet[1:4] == ["3", "1", "1"]
    [first] = [line for line in words if line[:2] == ["node7", "gpu:0"]]
    assert first[2:5] == ["resnet", "resnet", "0"]
    [second] = [line for line in words if line[:2] == ["node7", "gpu:1"]]
    assert second[2:5] == ["bert", "-", "-"]


def test_a_pool_says_which_deadline_it_cannot_hold_and_what_would_have_to_give(url: str) -> None:
    study = optuna.load_study(study_name="resnet", storage=url)
    table = AllocationTable(open_table(study), "lab", study._study_id)
    term = table.elect_planner("resnet")
    assert term is not None
    table.set_claim("resnet", term, StudyClaim(live=3, most=2, done=0.0, remaining=6000.0))
    shown = CliRunner().invoke(app, ["status", "--pool", "--storage", url])
    words = " ".join(shown.output.split())
    # Three quarters of two slots, by weight: both have the same time.
    assert "resnet gets 1 h 30 min on one slot of the 1 h 40 min that it expects to" in words
    assert re.search("extend it by 6 min( . s)?, or add slots; no weight is enough.", words)
    answer = CliRunner().invoke(app, ["status", "--pool", "--storage", url, "--json"])
    assert len(json.loads(answer.output)[0]["shortfalls"]) == 1


def test_the_pool_of_a_study_is_shown_alone(url: str) -> None:
    answer = CliRunner().invoke(app, ["status", "resnet", "--pool", "--storage", url, "--json"])
    assert [pool["name"] for pool in json.loads(answer.output)] == ["lab"]


def test_a_database_without_a_pool_is_told_of_as_such(sqlite_url: str) -> None:
    agree(optuna.create_study(study_name="s", storage=sqlite_url), "1h")
    shown = CliRunner().invoke(app, ["status", "--pool", "--storage", sqlite_url])
    assert shown.output == "There is no pool yet: the first worker of a study creates one.\n"
    answer = CliRunner().invoke(app, ["status", "--pool", "--storage", sqlite_url, "--json"])
    assert json.loads(answer.output) == []
