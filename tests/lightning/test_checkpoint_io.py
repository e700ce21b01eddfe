"""A checkpoint file is whole or not there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from forking import CONTEXT
from lightning.pytorch.callbacks import ModelCheckpoint
from optuna_deadline_lightning import AtomicCheckpointIO
from optuna_deadline_lightning.checkpoint_io import FormerFolders


def half(state: Any, path: Path) -> None:
    """Write the first bytes of an archive, as a write that is cut short."""
    Path(path).write_bytes(b"PK\x03\x04" + b"half")


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "some.ckpt"
    AtomicCheckpointIO().save_checkpoint({"a": torch.ones(2)}, path)
    assert [file.name for file in path.parent.iterdir()] == ["some.ckpt"]
    assert torch.equal(AtomicCheckpointIO().load_checkpoint(path)["a"], torch.ones(2))


def test_torn_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(state: Any, path: Path) -> None:
        half(state, path)
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "some.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_torn_write_leaves_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.ckpt"
    AtomicCheckpointIO().save_checkpoint({"a": 1}, path)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", lambda state, to: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            AtomicCheckpointIO().save_checkpoint({"a": 2}, path)
    assert AtomicCheckpointIO().load_checkpoint(path) == {"a": 1}


def _killed(path: str) -> None:
    def kill(state: Any, to: Path) -> None:
        half(state, to)
        os.kill(os.getpid(), signal.SIGKILL)

    torch.save = kill
    AtomicCheckpointIO().save_checkpoint({}, path)


@pytest.mark.slow
def test_killed_while_writing_leaves_no_file_under_the_name(tmp_path: Path) -> None:
    process = CONTEXT.Process(target=_killed, args=(str(tmp_path / "some.ckpt"),))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not list(tmp_path.glob("*.ckpt"))


def test_own_folder_may_hold_any_hyper_parameters(tmp_path: Path) -> None:
    path = tmp_path / "some.ckpt"
    AtomicCheckpointIO().save_checkpoint({"hyper": Path("data")}, path)
    assert AtomicCheckpointIO(tmp_path).load_checkpoint(path) == {"hyper": Path("data")}
    with pytest.raises(Exception, match=r"[Ww]eights"):
        AtomicCheckpointIO(tmp_path / "other").load_checkpoint(path)


@pytest.mark.parametrize("given", [None, "mine"])
def test_the_best_score_is_known_after_a_pause_whatever_the_loggers_version(
    given: str | None,
) -> None:
    """As Lightning does it: a default folder is set, then all states are loaded."""
    first = ModelCheckpoint(given, monitor="val_acc")
    first.dirpath = given or "logs/version_1/checkpoints"
    first.best_model_score = torch.tensor(0.9)
    resumed, folders = ModelCheckpoint(given, monitor="val_acc"), FormerFolders()
    folders.note([resumed])
    resumed.dirpath = given or "logs/version_2/checkpoints"
    checkpoint = {"callbacks": {first.state_key: first.state_dict()}}
    folders.restore(checkpoint)
    resumed.load_state_dict(checkpoint["callbacks"][resumed.state_key])
    assert (resumed.best_model_score, resumed.dirpath) == (first.best_model_score, first.dirpath)
