"""A checkpoint file is whole or not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from elastic_harness import Plan, PlayedSegment, PlayedTrial
from elastic_training import Net, data
from forking import CONTEXT
from lightning.pytorch.callbacks import ModelCheckpoint
from optuna_deadline_lightning import AtomicCheckpointIO, DeadlineCallback
from optuna_deadline_lightning.checkpoint_io import FormerFolders, check_loadable
from torch.utils.data import DataLoader

from optuna_deadline.errors import DeadlineError


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


class Harmful:
    """What a forged checkpoint may hold: code that runs when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_a_checkpoint_of_the_trial_runs_no_code_unless_it_is_trusted(tmp_path: Path) -> None:
    path, touched = tmp_path / "some.ckpt", tmp_path / "touched"
    AtomicCheckpointIO().save_checkpoint({"hyper_parameters": {"mine": Harmful(touched)}}, path)
    with pytest.raises(DeadlineError, match="trust_checkpoints=True"):
        AtomicCheckpointIO(tmp_path).load_checkpoint(path)
    assert not touched.exists()
    with pytest.raises(Exception, match=r"[Ww]eights"):  # Lightning's own default
        AtomicCheckpointIO(tmp_path / "other").load_checkpoint(path)
    assert not touched.exists()
    AtomicCheckpointIO(tmp_path, trust=True).load_checkpoint(path)
    assert touched.exists()


def test_usual_hyper_parameters_load_and_objects_are_refused_before_they_are_needed(
    tmp_path: Path,
) -> None:
    usual = {"hyper_parameters": {"data": Path("data"), "options": Namespace(lr=0.1)}}
    check_loadable(usual)
    path = tmp_path / "some.ckpt"
    AtomicCheckpointIO().save_checkpoint(usual, path)
    assert AtomicCheckpointIO(tmp_path).load_checkpoint(path) == usual
    with pytest.raises(DeadlineError, match=r"save_hyperparameters\(ignore="):
        check_loadable({"state_dict": {}, "hyper_parameters": {"mine": Harmful(tmp_path / "x")}})
    assert not (tmp_path / "x").exists()


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


def test_the_state_that_lightnings_default_would_keep_can_be_asked_for(tmp_path: Path) -> None:
    plan = Plan(str(tmp_path), epochs=1)
    segment = PlayedSegment(plan, rank=0)
    deadline = DeadlineCallback(PlayedTrial(segment), "val_acc")
    trainer = pl.Trainer(
        max_epochs=1, logger=False, enable_progress_bar=False, default_root_dir=tmp_path,
        callbacks=[deadline], **deadline.trainer_options(),
    )  # fmt: skip
    model = Net(plan, {}, segment)
    training, held_out = (DataLoader(one, 20) for one in data(plan.samples))
    trainer.fit(model, training, held_out)
    assert not list(tmp_path.glob("*last*")), "it is written at the first request"
    trained = [one.detach().clone() for one in model.parameters()]
    trainer.validate(model, held_out, ckpt_path="best", verbose=False)
    with torch.no_grad():
        for one in model.parameters():
            one.zero_()
    trainer.validate(model, held_out, ckpt_path="best", verbose=False)
    assert all(map(torch.equal, model.parameters(), trained))


@pytest.mark.slow
def test_an_older_lightning_is_refused_where_it_is_imported() -> None:
    code = "import lightning; lightning.__version__ = '2.5.6'; import optuna_deadline_lightning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: Lightning 2.5.6 does not resume" in done.stderr
