"""Commands that steer a study: what they write, print and refuse."""

from __future__ import annotations

import json
from typing import Any

import optuna
import pytest
from endings import end_within
from typer.testing import CliRunner

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Assignment, Grant, MachineInfo
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli import app
from optuna_deadline.elastic import agree


@pytest.fixture
def table(sqlite_url: str) -> AllocationTable:
    """A study with a worker of two slots, one trial in training, one paused and one pruned."""
    study = optuna.create_study(study_name="s", storage=sqlite_url)
    terms = agree(study, "1h")
    table = AllocationTable(open_table(study), "lab", terms.study_id)
    table.register("me", "node7", 4711, ["gpu:0", "gpu:1"], 0)
    term = table.elect_planner("me")
    assert term is not None
    for number in range(3):
        table.open_trial("me", term, number, 100 + number)
    table.write_plan("me", term, [Assignment(0, "run", "me", 1, "test")])
    assert table.acquire("me", 0, [1]) is not None
    table.conclude("me", term, 2, "retired", "others were better")
    return table


@pytest.fixture
def url(table: AllocationTable, sqlite_url: str) -> str:
    return sqlite_url


def run(words: str, url: str, code: int = 0) -> str:
    """The output of a command, in one line."""
    asked = CliRunner().invoke(app, [*words.split(), "--storage", url])
    assert asked.exit_code == code, asked.output
    return " ".join(asked.output.split())


def read(words: str, url: str) -> Any:
    return json.loads(run(f"{words} --json", url))


def test_a_trial_is_paused_and_resumed(table: AllocationTable, url: str) -> None:
    output = run("steer 0 --pause --study s", url)
    assert output == (
        "Trial 0 of s is held until it is resumed: it saves and leaves its slots at its next step."
    )
    assert table.trials()[0].held is not None
    assert run("steer 1 --pause --study s", url) == "Trial 1 of s is held until it is resumed."
    assert "resumes once" in run("steer 0 --resume --study s", url)
    assert [line.held is not None for line in table.trials()] == [False, True, False]
    assert run("steer 0 --resume --study s", url).startswith("Trial 0 of s is not held")


def test_a_gang_is_pinned_and_left_to_the_policy(table: AllocationTable, url: str) -> None:
    output = run("steer 1 --study s --resize 2", url)
    assert output == "Trial 1 of s trains on 2 slots, or waits for them, until --resize auto."
    assert [line.pinned for line in table.trials()] == [None, 2, None]
    run("steer 1 --pause --study s", url)
    assert "2 slots once it is resumed" in run("steer 1 --study s --resize 2", url)
    assert "The policy decides the number of slots" in run("steer 1 --study s --resize auto", url)
    assert table.trials()[1].pinned is None


def test_a_host_is_drained_of_every_study_and_pool(table: AllocationTable, url: str) -> None:
    second = agree(optuna.create_study(study_name="t", storage=url), "1h")
    other = AllocationTable(table.database, "other", second.study_id)
    other.register("there", "node7", 4712, ["gpu:7"], 0)
    output = run("drain node7", url)
    assert output == (
        "2 workers on node7 will leave, once their trials have saved. No other host has a worker "
        "for them: they wait until one comes."
    )
    assert table.orders("me").drained and other.orders("there").drained
    assert "2 workers on node7 stay" in run("drain node7 --undo", url)
    assert not table.orders("me").drained
    assert "(hosts with one: node7)" in run("drain node8", url, code=2)
    table.leave("me")
    other.leave("there")
    assert "(hosts with one: none)" in run("drain node7 --undo", url, code=2)


def test_a_drained_study_that_is_about_to_end_waits_for_no_other_host(
    table: AllocationTable, url: str
) -> None:
    run("stop s --within 8s", url)
    output = run("drain node7", url)
    assert output == "1 worker on node7 will leave, once their trials have saved."


@pytest.mark.parametrize(
    "command", ["steer {} --pause", "steer {} --resume", "steer {} --resize 1"]
)
def test_what_cannot_be_steered_is_refused(url: str, command: str) -> None:
    def refusal(trial: int, study: str = "s") -> str:
        return run(f"{command.format(trial)} --study {study}", url, code=2)

    assert "know no trial 7 (they know: 0, 1)" in refusal(7)
    assert "Trial 2 of s was pruned" in refusal(2)
    assert "There is no study 'x'" in refusal(0, "x")
    optuna.create_study(study_name="plain", storage=url)
    assert "has no deadline" in refusal(0, "plain")


@pytest.mark.parametrize("command", ["steer 0 --pause", "steer 0 --resume", "steer 0 --resize 1"])
def test_nothing_is_asked_of_a_study_that_is_over(
    table: AllocationTable, url: str, command: str
) -> None:
    assert end_within(table, -1)
    assert "give it more time first, with 'optuna-deadline set s" in run(
        f"{command} --study s", url, code=2
    )


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("3", "No worker of s has 3 slots: the largest has 2"),
        ("0", "takes a number of slots from 1, or auto, but got '0'"),
        ("all", "but got 'all'"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    table: AllocationTable, url: str, size: str, says: str
) -> None:
    assert says in run(f"steer 0 --study s --resize {size}", url, code=2)
    assert table.trials()[0].pinned is None


def test_a_size_that_several_workers_have_together_is_taken(
    table: AllocationTable, url: str
) -> None:
    apart = "gang crosses workers only where these say --multi-node"
    other = AllocationTable(table.database, table.pool, table.study_id)
    other.register("there", "node7", 2, [], 2)
    assert apart in run("steer 0 --study s --resize 4", url, code=2)
    for name in ("me", "there"):
        about = MachineInfo(store="s3://bucket", address=name)
        table.register(name, "node7", 1, [], 2, machine_info=about)
    assert "the largest gang is 4" in run("steer 0 --study s --resize 5", url, code=2)
    run("steer 0 --study s --resize 4", url)
    assert table.trials()[0].pinned == 4


def test_a_size_that_does_not_divide_the_batch_is_refused(
    table: AllocationTable, url: str
) -> None:
    grant = Grant(0, 100, table.trials()[0].fence, ((1, 1),), ("0",))
    table.set_progress(
        "me", grant, startup=1, position_from=0, position_to=1, trained=1, horizon=9, batch=15
    )
    says = "2 slots do not divide its batch of 15, and trial 0 wants equal shards: give it 1"
    assert says in run("steer 0 --study s --resize 2", url, code=2)
    assert table.trials()[0].pinned is None
    assert "trains on 1 slot" in run("steer 0 --study s --resize 1", url)


def test_more_slots_than_a_trial_can_train_on_are_refused(
    table: AllocationTable, url: str
) -> None:
    grant = Grant(0, 100, table.trials()[0].fence, ((1, 1),), ("0",))
    table.limit_slots("me", grant, 1, "Its batches are whole.")
    says = "Trial 0 trains on one slot only, give it no more: Its batches are whole."
    assert says in run("steer 0 --study s --resize 2", url, code=2)
    assert "trains on 1 slot" in run("steer 0 --study s --resize 1", url)
    assert "trial 0 of s trains on one slot only: Its batches are whole." in run(
        "status s --events", url
    )


def test_a_request_is_recorded_though_nobody_lives(table: AllocationTable, url: str) -> None:
    table.leave("me")
    for command in ("steer 1 --pause", "steer 1 --resize 8", "steer 1 --resume"):
        output = run(f"{command} --study s", url)
        assert output.endswith("It is recorded; no worker is alive, and the next one obeys.")
    assert table.trials()[1].pinned == 8


def test_everybody_sees_what_was_asked(table: AllocationTable, url: str) -> None:
    for command in ("steer 1 --pause --study s", "steer 0 --resize 2 --study s", "drain node7"):
        run(command, url)
    text = run("status s", url)
    assert "drained node7" in text and "running, pinned 2" in text and "ready, held" in text
    found = read("status s", url)
    assert found["drained"] == ["node7"]
    assert [(row["held"], row["pinned"]) for row in found["rows"]] == [
        (False, 2), (True, None), (False, None),
    ]  # fmt: skip
    told = run("status s --events", url)
    assert "trial 1 of s is held by request" in told and "node7 is drained" in told
    assert "trial 0 of s is pinned to 2 slots" in told
    assert "node7, drained" in run("status --pool", url)
    run("steer 1 --resume --study s", url)
    assert "trial 1 of s is resumed by request" in run("status s --events", url)
