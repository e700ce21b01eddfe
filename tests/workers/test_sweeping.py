"""Files whose row never came are deleted when nobody can write it any more, and none else."""

from __future__ import annotations

import threading
from pathlib import Path

import objectives
import optuna
import pytest
from tables import table_of

import optuna_deadline
from optuna_deadline.checkpoints import Checkpoint
from optuna_deadline.workers.resuming import Folders, Sweeping

NAMED = "segment-000002-step-000000020.ckpt"
LOST = "segment-000002-step-000000030.ckpt"
TORN = ".segment-000002-step-000000040.ckpt.0123abcd.tmp"
THEIRS = ["epoch=3.ckpt", "notes.txt", ".hidden", "segment-2.ckpt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trial-4" / "deeper").mkdir(parents=True)
    for name in (NAMED, LOST, TORN, *THEIRS):
        (tmp_path / "trial-4" / name).write_text("x")
    return tmp_path


def row(folder: Path) -> Checkpoint:
    return Checkpoint(4, 2, 1, None, folder / "trial-4" / NAMED, 1, "crc32:0")


def left(folder: Path) -> set[str]:
    return {path.name for path in (folder / "trial-4").iterdir() if path.is_file()}


def swept(folder: Path, looked: int, granted: int, later: str = "") -> set[str]:
    """What is left after a look under one fence and a grant after another."""
    sweeping = Sweeping(Folders(folder))
    sweeping.look(4, looked, [row(folder)])
    sweeping._aside.do(lambda: None).result()
    if later:
        (folder / "trial-4" / later).write_text("x")
    sweeping.sweep_unnamed(4, granted)
    sweeping.close(5)
    return left(folder)


def test_what_no_row_names_is_deleted_and_what_is_not_ours_stays(folder: Path) -> None:
    assert swept(folder, 2, 2) == {NAMED, *THEIRS}


def test_what_came_after_the_look_stays(folder: Path) -> None:
    new = "segment-000003-step-000000050.ckpt"
    assert swept(folder, 2, 2, later=new) == {NAMED, new, *THEIRS}


def test_a_look_that_comes_late_sees_the_next_segment_and_spares_it(folder: Path) -> None:
    new = ["segment-000003-step-000000050.ckpt", "3-50-ab12.ckpt", ".3-60-ab12.ckpt.0123abcd.tmp"]
    sweeping, go = Sweeping(Folders(folder)), threading.Event()
    sweeping._aside.do(go.wait)
    sweeping.look(4, 2, [row(folder)])
    sweeping.sweep_unnamed(4, 2)
    for name in (*new, "2--1-ab12.ckpt"):
        (folder / "trial-4" / name).write_text("x")
    go.set()
    sweeping._aside.do(lambda: None).result()
    sweeping.close(5)
    assert left(folder) == {NAMED, *new, *THEIRS}


def test_where_somebody_trained_since_the_look_nothing_is_deleted(folder: Path) -> None:
    before = left(folder)
    assert swept(folder, 2, 3) == before


def test_without_a_look_nothing_is_deleted(folder: Path) -> None:
    sweeping = Sweeping(Folders(folder))
    sweeping.sweep_unnamed(4, 2)
    sweeping.look(4, 0, [])  # a trial that begins
    sweeping.sweep_unnamed(4, 0)
    sweeping.close(5)
    assert {NAMED, LOST, TORN} <= left(folder)


def test_an_ended_trial_leaves_only_what_its_rows_name(folder: Path) -> None:
    (folder / "trial-5").mkdir()
    (folder / "trial-5" / LOST).write_text("x")
    sweeping = Sweeping(Folders(folder))
    sweeping.sweep_all_ended([4, 6], [row(folder)])  # 5 has not ended, and of 6 there is nothing
    sweeping.close(5)
    assert left(folder) == {NAMED, *THEIRS}
    assert (folder / "trial-5" / LOST).exists() and not (folder / "trial-6").exists()


@pytest.mark.slow
def test_when_a_study_is_over_no_trial_has_a_file_without_a_row(
    sqlite_study: optuna.Study, tmp_path: Path
) -> None:
    """Pruned ones too, and whatever a worker that was killed left behind."""
    study = sqlite_study
    folder = tmp_path / study.study_name
    for number in range(3):
        (folder / f"trial-{number}").mkdir(parents=True)
        for name in (LOST, TORN, "notes.txt"):
            (folder / f"trial-{number}" / name).write_text("x")
    result = optuna_deadline.run(
        study, objectives.elastic, cpus=2, deadline="6s", checkpoints=tmp_path
    )
    assert result.checkpoint_ok and len(study.trials) >= 3
    named = {checkpoint.path for checkpoint in table_of(study).checkpoints()}
    files = {path for path in folder.rglob("*") if path.is_file()}
    assert named <= files and {one.name for one in files - named} == {
        "notes.txt",
        ".optuna-deadline-store",
    }
