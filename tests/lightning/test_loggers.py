"""A trial has one run of each logger, with each step once."""

from __future__ import annotations

import csv
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import pytest
import torch
from elastic_harness import Plan, PlayedSegment, PlayedTrial, Seen
from elastic_training import Net, data
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from optuna_deadline_lightning import DeadlineCallback
from torch.utils.data import DataLoader

from optuna_deadline.segments import SegmentEnd

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Logged(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


class Configured(Net):
    of: ClassVar[Any]

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__(*self.of)


def trained(
    root: Path, make: Callable[[str], Any], leave_at: int | None, lost: bool, saved: bool = True
) -> int:
    """Train in segments, each with a new logger; returns their number.

    If the first one is ``lost``, it dies some steps after its checkpoint, or before it is saved.
    """
    resume, folder, attributes = None, root / "trial", dict[str, Any]()
    folder.mkdir(parents=True)
    for fence in range(1, 60):
        plan = Plan(str(folder), fence=fence, leave_at=leave_at, resume=resume, epochs=2)
        segment = PlayedSegment(plan, rank=0)
        if lost and fence == 1:
            segment.leave = lambda directive=None: None  # type: ignore[assignment,method-assign,return-value]
        trial = PlayedTrial(segment)
        trial.user_attrs = attributes
        deadline = DeadlineCallback(trial, "val_acc")
        trainer = pl.Trainer(
            max_epochs=2, logger=make(str(root)), log_every_n_steps=1, enable_checkpointing=False,
            enable_progress_bar=False, default_root_dir=folder, callbacks=[deadline],
            max_steps=5 if lost and fence == 1 else -1, **deadline.trainer_options(),
        )  # fmt: skip
        training, held_out = (DataLoader(one, 20) for one in data(plan.samples))
        try:
            model = Logged(plan, {}, segment)
            trainer.fit(model, training, held_out, ckpt_path=deadline.ckpt_path)
        except SegmentEnd:
            resume = segment.published[-1]["path"]
            continue
        if not (lost and fence == 1):
            return fence
        resume = segment.published[0]["path"] if saved else None
    raise AssertionError("it never ends")


def rows(root: Path) -> list[Any]:
    """The rows of each run."""
    return [list(csv.DictReader(one.open())) for one in sorted(root.rglob("metrics.csv"))]


@pytest.mark.parametrize(("lost", "saved"), [(False, True), (True, True), (True, False)])
def test_a_table_of_metrics_has_each_step_once(tmp_path: Path, lost: bool, saved: bool) -> None:
    assert trained(tmp_path / "still", CSVLogger, None, False) == 1
    assert trained(tmp_path / "left", CSVLogger, 2, lost, saved) > 1
    [still] = rows(tmp_path / "still")
    assert rows(tmp_path / "left") == [still] and len(still) > 10


def scalars(root: Path) -> list[Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for folder in sorted(root.rglob("version_*")):
        events = EventAccumulator(str(folder))  # type: ignore[no-untyped-call]
        events.Reload()  # type: ignore[no-untyped-call]
        tags = events.Tags()["scalars"]  # type: ignore[no-untyped-call]
        found.append({tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in tags})  # type: ignore[no-untyped-call]
    return found


@pytest.mark.usefixtures("event_files_from_0")
def test_tensorboard_has_one_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    trained(tmp_path / "still", TensorBoardLogger, None, False)
    trained(tmp_path / "left", TensorBoardLogger, 2, True)
    [still] = scalars(tmp_path / "still")
    assert scalars(tmp_path / "left") == [still]


def metrics(root: Path) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{root}/runs.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    return [
        {
            name: [
                (one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }
        for run in client.search_runs(experiments)
    ]


def test_mlflow_has_one_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")

    def make(root: str) -> MLFlowLogger:
        return MLFlowLogger(tracking_uri=f"sqlite:///{root}/runs.db")

    trained(tmp_path / "still", make, None, False)
    trained(tmp_path / "left", make, 4, False)
    [still] = metrics(tmp_path / "still")
    assert metrics(tmp_path / "left") == [still]


def test_wandb_has_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")

    def make(root: str) -> WandbLogger:
        wandb.finish()  # as the end of the process before
        return WandbLogger(save_dir=root, project="ours")

    assert trained(tmp_path, make, 4, False) > 1
    runs = {one.name.split("-")[3] for one in tmp_path.rglob("offline-run-*")}
    assert len(runs) == 1


def test_a_training_that_is_only_checked_writes_no_logs(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    plan = Plan(str(tmp_path / "trial"), epochs=1)
    segment = PlayedSegment(plan, rank=0)
    segment.checked = True  # type: ignore[attr-defined]
    deadline = DeadlineCallback(PlayedTrial(segment), "val_acc")
    kept = ModelCheckpoint(tmp_path / "kept", monitor="val_acc")
    trainer = pl.Trainer(
        max_epochs=1, logger=CSVLogger(tmp_path / "logs"), default_root_dir=tmp_path,
        callbacks=[deadline, kept], enable_progress_bar=False, **deadline.trainer_options(),
    )  # fmt: skip
    training, held_out = (DataLoader(one, 20) for one in data(plan.samples))
    trainer.fit(Logged(plan, {}, segment), training, held_out)
    assert [one.name for one in tmp_path.iterdir()] == ["trial"]
    assert Path(kept.best_model_path).parent == tmp_path / "trial" / "kept"


def test_a_command_line_of_lightning_saves_its_configuration_once(tmp_path: Path) -> None:
    resume, segments = None, 0
    for fence in range(1, 60):
        plan = Plan(str(tmp_path), fence=fence, leave_at=0, resume=resume, epochs=1)
        segment, training = PlayedSegment(plan, rank=0), data(plan.samples)
        deadline = DeadlineCallback(PlayedTrial(segment), "val_acc")
        Configured.of = plan, Seen(), segment
        cli = LightningCLI(Configured, run=False, args=["--trainer.max_epochs=1"])
        trainer = cli.instantiate_trainer(
            logger=CSVLogger(tmp_path), callbacks=[deadline], **deadline.trainer_options()
        )
        loaders = DataLoader(training[0], 16), DataLoader(training[1], 20)
        try:
            trainer.fit(cli.model, *loaders, ckpt_path=deadline.ckpt_path)
            break
        except SegmentEnd:
            resume, segments = segment.published[-1]["path"], segments + 1
    assert segments > 3
    assert [path.name for path in tmp_path.rglob("config.yaml")] == ["config.yaml"]
