"""A disk that is full, read-only or not there ends no trial."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from forked import WorkerProcess
from left_segments import Ear
from tables import table_of, wait_until

from optuna_deadline.checkpoints.files import checksum, intact
from optuna_deadline.elastic import agree
from optuna_deadline.rank.messages import NotSaved, Saved
from optuna_deadline.rank.trial import RankSegment
from optuna_deadline.study.terms import Given


def segment(folder: Path, ear: Ear, store: str | None = None) -> RankSegment:
    return RankSegment(
        ear,  # type: ignore[arg-type]
        rank=0, world_size=1, fence=2, folder=folder, resume=None, direction="minimize",
        store=store,
    )  # fmt: skip


def write(text: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(text)


def full(path: Path) -> None:
    path.write_text("half")
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_and_leaves_the_file_before(tmp_path: Path) -> None:
    ear = Ear()
    rank = segment(tmp_path / "trial-3", ear)
    assert rank.save(write("one"), step=1, name="one.ckpt") is not None
    assert rank.save(full, step=2, name="two.ckpt") is None
    assert rank.save(write("three"), step=3) is not None
    assert [type(message) for message in ear.heard] == [Saved, NotSaved, Saved]
    assert ear.heard[1].why == "[Errno 28] No space left on device"
    for message in ear.heard:
        if isinstance(message, Saved):
            assert checksum(Path(message.path)) == message.checksum
    assert len(list((tmp_path / "trial-3").iterdir())) == 2, "nothing is left of the second"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ear = Ear()
    assert segment(tmp_path / "file" / "trial-3", ear).save(write("one"), step=1) is None
    [message] = ear.heard
    assert isinstance(message, NotSaved) and "file" in message.why


def test_a_store_that_refuses_is_told(tmp_path: Path) -> None:
    ear = Ear()
    refusing = f"file://{tmp_path}/file/trial-3"  # fsspec's name for this disk
    (tmp_path / "file").write_text("in the way")
    rank = segment(tmp_path / "here", ear, refusing)
    assert rank.save(write("one"), step=1, name="one.ckpt") is None
    assert [type(message) for message in ear.heard] == [NotSaved]


def test_what_is_wrong_with_the_state_is_the_objectives_own(tmp_path: Path) -> None:
    def bug(path: Path) -> None:
        raise TypeError("cannot pickle a generator")

    with pytest.raises(TypeError, match="generator"):
        segment(tmp_path, Ear()).save(bug, step=1)


@pytest.mark.slow
def test_a_trial_trains_on_with_a_full_disk_and_goes_on_from_what_it_has(
    sqlite_study: optuna.Study,
    sqlite_url: str,
    start_worker: Callable[..., WorkerProcess],
    tmp_path: Path,
    log_text: Callable[[], str],
) -> None:
    agree(sqlite_study, "100s", Given("fifo"))
    table, log = table_of(sqlite_study), str(tmp_path / "pids")
    worker = start_worker(sqlite_url, "filling", RANK_LOG=log)
    wait_until(lambda: any(row.step >= 9 for row in table.reports()))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130
    [line] = table.trials()
    assert (line.state, line.owner, line.failures) == ("paused", None, 0)
    newest = table.checkpoints(0)[0]
    assert newest.step == 3 and intact(newest)
    assert log_text().count("Trial 0 could not save step") == 1 and "File too large" in log_text()
    last = max(row.step for row in table.reports())
    worker = start_worker(sqlite_url, "filling", RANK_LOG=log)
    wait_until(lambda: any(row.step >= last + 2 for row in table.reports()))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130
    steps = [row.step for row in table.reports()]
    assert steps == list(range(len(steps))), "what is redone is not reported twice"
    assert table.checkpoints(0)[0].step == steps[-1]
