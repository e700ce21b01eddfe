"""Real workers obey what a person asks for on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from endings import end_within
from forked import WorkerProcess
from tables import table_of, wait_until
from typer.testing import CliRunner

from optuna_deadline.allocation.records import PlannedTrial, SegmentRow
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli import app
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"postgres|pinned|drain|asked")]
Start = Callable[..., WorkerProcess]


def ask(words: str, url: str) -> None:
    asked = CliRunner().invoke(app, [*words.split(), "--storage", url])
    assert asked.exit_code == 0, asked.output


def create(study: optuna.Study, n_trials: int) -> AllocationTable:
    """A study of so many trials, each of which would train on one slot all the time."""
    agree(study, "10m", Given("fifo", {"n_trials": n_trials}))
    return table_of(study)


def line_of(table: AllocationTable, number: int) -> PlannedTrial:
    return next(line for line in table.trials() if line.number == number)


def segments_of(table: AllocationTable, number: int) -> list[SegmentRow]:
    return [row for row in table.segments() if row.number == number]


def trains(table: AllocationTable, number: int, slots: int = 1, steps: int = 2) -> bool:
    """Whether a trial's newest segment has so many slots, and has come so far on them."""
    rows = segments_of(table, number)
    if not rows or rows[-1].ended is not None or rows[-1].slots != slots:
        return False
    return (rows[-1].position_to or 0.0) >= (rows[-1].position_from or 0.0) + steps


def check_steps(study: optuna.Study) -> None:
    """Every trial reported each of its steps: none was lost where it moved."""
    for trial in study.get_trials(deepcopy=False):
        steps = sorted(trial.intermediate_values)
        assert steps == list(range(len(steps)))


def test_a_paused_trial_waits_until_it_is_resumed(
    study: optuna.Study, storage_url: str, start_worker: Start, tmp_path: Path
) -> None:
    table = create(study, n_trials=2)
    worker = start_worker(storage_url, "slow", cpus=2, RANK_LOG=str(tmp_path / "ranks"))
    wait_until(lambda: trains(table, 0) and trains(table, 1))
    ask("steer 0 --pause --study study", storage_url)
    wait_until(lambda: line_of(table, 0).state == "paused")
    [left] = segments_of(table, 0)
    assert left.outcome == "pause" and left.ended is not None
    saved = max(row.step for row in table.checkpoints(0))
    reported = len(table.reports(number=1))
    wait_until(lambda: len(table.reports(number=1)) > reported + 15)
    assert len(segments_of(table, 0)) == 1, "a slot is free, and it gets none"
    ask("steer 0 --resume --study study", storage_url)
    wait_until(lambda: trains(table, 0))
    assert json.loads(table.checkpoints(0)[0].path.read_text())["step"] > saved
    end_within(table, 2)
    assert worker.wait(60) == 0
    check_steps(study)


def test_a_pinned_gang_has_its_size_and_others_the_rest(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, tmp_path: Path
) -> None:
    table = create(sqlite_study, n_trials=2)
    worker = start_worker(sqlite_url, "slow", cpus=3, RANK_LOG=str(tmp_path / "ranks"))
    wait_until(lambda: trains(table, 0) and trains(table, 1))
    ask("steer 1 --resize 3 --study study", sqlite_url)
    wait_until(lambda: trains(table, 1, slots=3))
    assert line_of(table, 0).state == "paused", "no slot is left for it"
    ask("steer 1 --resize 2 --study study", sqlite_url)
    wait_until(lambda: trains(table, 1, slots=2) and trains(table, 0))
    ask("steer 1 --resize auto --study study", sqlite_url)
    wait_until(lambda: trains(table, 1, slots=1))
    assert [row.slots for row in segments_of(table, 1)] == [1, 3, 2, 1]
    end_within(table, 2)
    assert worker.wait(60) == 0
    check_steps(sqlite_study)


@pytest.mark.postgres
def test_a_drained_hosts_trials_go_on_elsewhere_and_its_worker_leaves(
    postgres_url: str, start_worker: Start, tmp_path: Path, log_text: Callable[[], str]
) -> None:
    study = optuna.create_study(study_name="study", storage=postgres_url, direction="maximize")
    table = create(study, n_trials=2)
    ranks = str(tmp_path / "ranks")
    first, second = (
        start_worker(postgres_url, "slow", cpus=1, RANK_LOG=ranks, OPTUNA_DEADLINE_HOST=host)
        for host in ("node1", "node2")
    )
    wait_until(lambda: trains(table, 0) and trains(table, 1))
    hosts = {row.id: row.host for row in table.workers()}
    moved = next(n for n in (0, 1) if hosts[line_of(table, n).owner or ""] == "node1")
    ask("drain node1", postgres_url)
    assert first.wait(60) == 130
    assert [row.host for row in table.workers()] == ["node2"]
    assert segments_of(table, moved)[0].outcome in ("pause", "resize") and table.checkpoints(moved)
    assert "This host is drained" in log_text()
    ask(f"steer {1 - moved} --pause --study study", postgres_url)  # makes room on the other host
    wait_until(lambda: trains(table, moved))
    assert hosts[line_of(table, moved).owner or ""] == "node2"
    end_within(table, 2)
    assert second.wait(60) == 0
    check_steps(study)


def test_a_drain_is_undone_as_long_as_the_worker_is_there(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, tmp_path: Path
) -> None:
    """Its rank takes its time to save, and the request is taken back meanwhile."""
    table = create(sqlite_study, n_trials=1)
    host = "node1"
    worker = start_worker(
        sqlite_url, "lingering", cpus=1, RANK_LOG=str(tmp_path / "ranks"),
        OPTUNA_DEADLINE_HOST=host, MAY_LEAVE=str(tmp_path / "may leave"),
    )  # fmt: skip
    wait_until(lambda: trains(table, 0))
    ask(f"drain {host}", sqlite_url)
    wait_until(lambda: line_of(table, 0).mode == "pause")
    ask(f"drain {host} --undo", sqlite_url)
    (tmp_path / "may leave").touch()
    wait_until(lambda: len(segments_of(table, 0)) == 2 and trains(table, 0))
    end_within(table, 3)
    assert worker.wait(60) == 0
    check_steps(sqlite_study)


def test_what_was_asked_before_anybody_came_is_obeyed(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, tmp_path: Path
) -> None:
    table = create(sqlite_study, n_trials=2)
    ranks = str(tmp_path / "ranks")
    first = start_worker(sqlite_url, "slow", cpus=2, RANK_LOG=ranks)
    wait_until(lambda: trains(table, 0) and trains(table, 1))
    first.terminate()
    assert first.wait(60) == 130
    ask("steer 0 --resize 2 --study study", sqlite_url)
    ask("steer 1 --pause --study study", sqlite_url)
    second = start_worker(sqlite_url, "slow", cpus=2, RANK_LOG=ranks)
    wait_until(lambda: trains(table, 0, slots=2))
    assert len(segments_of(table, 1)) == 1
    end_within(table, 2)
    assert second.wait(60) == 0
    check_steps(sqlite_study)
