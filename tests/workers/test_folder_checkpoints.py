"""A framework's folder becomes one checkpoint, and is there again in the trial's next segment."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from left_segments import Ear

from optuna_deadline.checkpoints.restore import CheckpointFolders, CheckpointSweeper
from optuna_deadline.checkpoints.storage import loading_code
from optuna_deadline.fits import begin_fit
from optuna_deadline.rank.messages import NotSaved, Saved
from optuna_deadline.rank.trial import RankSegment
from optuna_deadline.segments import Segment, WholeTrial


class Trial:
    """The trial of a segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment


def segment(
    folder: Path, ear: Ear, resume: Path | None = None, *, rank: int = 0, fence: int = 2
) -> RankSegment:
    return RankSegment(
        ear,  # type: ignore[arg-type]
        rank=rank, world_size=2, fence=fence, folder=folder / "trial-3", resume=resume,
        direction="minimize",
    )  # fmt: skip


def fill(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\0" * 100_000)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "ünï.json").write_text("{}")
    (folder / "empty").mkdir()


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None
        for one in folder.rglob("*")
    }


@pytest.mark.parametrize("fit", [None, "fold-1"])
def test_a_saved_folder_is_there_in_the_next_segment_of_every_rank(
    tmp_path: Path, fit: str | None
) -> None:
    ear = Ear()
    begun: Any = segment(tmp_path, ear)
    begun = begun if fit is None else begin_fit(Trial(begun), fit)
    assert begun.resume_dir() is None
    with begun.save_dir(step=4, value=0.5) as folder:
        fill(folder)
        expected = content(folder)
    assert not folder.exists(), "the working folder is deleted"
    [saved] = ear.heard
    assert isinstance(saved, Saved) and (saved.step, saved.value) == (4, 0.5)
    for rank in range(2):
        next_: Any = segment(tmp_path, Ear(), Path(saved.path), rank=rank, fence=3)
        next_ = next_ if fit is None else begin_fit(Trial(next_), fit)
        found = content(next_.resume_dir())
        assert {name: text for name, text in found.items() if "fits" not in name} == expected


def test_only_the_first_rank_saves(tmp_path: Path) -> None:
    ear = Ear()
    with segment(tmp_path, ear, rank=1).save_dir(step=4) as folder:
        fill(folder)
    assert ear.heard == [] and not folder.exists()


def test_an_error_in_the_block_saves_nothing(tmp_path: Path) -> None:
    ear = Ear()
    with (
        pytest.raises(ValueError, match="no such layer"),
        segment(tmp_path, ear).save_dir(step=4),
    ):
        raise ValueError("no such layer")
    assert ear.heard == [] and [*(tmp_path / "trial-3").iterdir()] == []


def test_a_full_disk_is_told_and_the_trial_continues(tmp_path: Path) -> None:
    ear = Ear()
    with segment(tmp_path, ear).save_dir(step=4):
        raise OSError(28, "No space left on device")
    assert [type(message) for message in ear.heard] == [NotSaved]
    assert [*(tmp_path / "trial-3").iterdir()] == []


def test_a_disk_without_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "trial-3").write_text("in the way")
    ear = Ear()
    with segment(tmp_path, ear).save_dir(step=4) as folder:
        fill(folder)
    assert [type(message) for message in ear.heard] == [NotSaved]
    assert not folder.exists()


def test_plain_optuna_saves_nothing() -> None:
    part = WholeTrial()
    assert part.resume_dir() is None
    with part.save_dir(step=4) as folder:
        fill(folder)
    assert not folder.exists()


def test_workers_delete_the_folders_that_a_segment_has_left(tmp_path: Path) -> None:
    ear = Ear()
    killed = segment(tmp_path, ear, fence=1).save_dir(step=4)
    killed.__enter__()  # and never left
    with segment(tmp_path, ear, fence=1).save_dir(step=4) as folder:
        fill(folder)
    segment(tmp_path, ear, Path(ear.heard[0].path)).resume_dir()
    mine = tmp_path / "trial-3" / "predictions"
    mine.mkdir()
    sweeper = CheckpointSweeper(CheckpointFolders(tmp_path))
    sweeper.sweep_ended(3, [])
    sweeper.close(5)
    assert [*(tmp_path / "trial-3").iterdir()] == [mine]


def test_the_line_that_loads_a_folder_unpacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ear = Ear()
    with segment(tmp_path, ear).save_dir(step=4) as folder:
        fill(folder)
        expected = content(folder)
    monkeypatch.chdir(tmp_path)
    exec(loading_code(Path(ear.heard[0].path)), {"zipfile": zipfile})
    assert content(tmp_path / "checkpoint") == expected
