"""Folders of checkpoints that another user could change are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import cast

import optuna
import pytest

import optuna_deadline
from optuna_deadline.checkpoints.files import write_checked
from optuna_deadline.checkpoints.private import make_private
from optuna_deadline.checkpoints.storage import root_of
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.trial import RankSegment
from optuna_deadline.study import agreement


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def link(folder: Path) -> None:
    folder.parent.joinpath("elsewhere").mkdir()
    folder.symlink_to("elsewhere")


def opened(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def foreign(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    folder.mkdir()
    os.chown(folder, 65534, 65534)


INTRUSIONS = [
    pytest.param(link, "is a symbolic link", id="link"),
    pytest.param(opened, "chmod go-w", id="open"),
    pytest.param(foreign, "belongs to another user", id="foreign"),
]


@pytest.mark.parametrize(("prepare", "says"), INTRUSIONS)
def test_a_prepared_folder_is_refused(
    tmp_path: Path, prepare: Callable[[Path], None], says: str
) -> None:
    prepare(tmp_path / "trial-0")
    with pytest.raises(DeadlineError, match=says):
        make_private(tmp_path / "trial-0")


@pytest.mark.parametrize(("prepare", "says"), INTRUSIONS)
def test_a_worker_refuses_a_prepared_folder_of_its_study(
    tmp_path: Path, sqlite_url: str, prepare: Callable[[Path], None], says: str
) -> None:
    study = optuna.create_study(study_name="s", storage=sqlite_url)
    engine = optuna_deadline.allocation.database.opening.open_table(study)
    agreement.fix(engine, study, "100s")
    prepare(root_of(tmp_path, "s", agreement.key(engine, study)))
    with pytest.raises(DeadlineError, match=says):
        optuna_deadline.run(study, lambda trial: 0.0, cpus=1, checkpoints=tmp_path)


def test_folders_and_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "deep" / "study"
        make_private(folder)
        make_private(folder)  # of another worker
        digest = write_checked(folder / "a.ckpt", lambda path: path.write_bytes(b"weights"))
    finally:
        os.umask(before)
    assert (mode(folder), mode(folder / "a.ckpt")) == (0o700, 0o600)
    assert digest.startswith("sha256:")


def test_a_studys_folder_that_was_deleted_comes_back_private(tmp_path: Path) -> None:
    root = tmp_path / "study-0123"
    segment = RankSegment(
        cast(Link, None), rank=0, world_size=1, fence=1, folder=root / "trial-0", resume=None,
        direction="minimize",
    )  # fmt: skip
    before = os.umask(0)
    try:
        assert segment.folder.is_dir()
    finally:
        os.umask(before)
    assert (mode(root), mode(root / "trial-0")) == (0o700, 0o700)
