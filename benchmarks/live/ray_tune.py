"""Ray Tune's contenders: its own loop, searcher and schedulers on the demo's network.

The program is typical for Ray's users: Lightning in a function that reports each epoch. Reports
are also appended to a file with their times, since Ray has no Optuna study.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import ray
import torch
from optuna.samplers import TPESampler
from optuna_deadline_demo.digits import MAX_EPOCHS, Digits, Net, _hush
from ray import tune
from ray.tune.schedulers import ASHAScheduler, ResourceChangingScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from benchmarks.live.reports import Report, append

_CHECKPOINT = "model.ckpt"


def start(slots: int) -> None:
    """Start Ray before the clock; its workers start within the time."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # their files are not read
    ray.init(
        num_cpus=slots,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
    )


class _Told(L.Callback):
    """Reports each epoch to Ray, with a checkpoint if trials can move."""

    def __init__(self, folder: str, saved: bool, width: int) -> None:
        self._folder, self._saved, self._width = Path(folder), saved, width

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Report after the validation of the epoch."""
        value = float(trainer.callback_metrics["val_acc"])
        epoch, name = trainer.current_epoch + 1, tune.get_context().get_trial_id()
        append(self._folder, Report(time.time(), name, epoch, self._width, value))
        if not self._saved:
            tune.report({"val_acc": value})
            return
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_checkpoint(Path(folder) / _CHECKPOINT)
            tune.report({"val_acc": value}, checkpoint=tune.Checkpoint.from_directory(folder))


def train(config: dict[str, Any], *, folder: str, saved: bool) -> None:
    """The demo's objective, with Ray's parameters in place of a trial's suggestions."""
    _hush()
    granted = tune.get_context().get_trial_resources() if saved else None
    torch.set_num_threads(int(granted.required_resources.get("CPU", 1)) if granted else 1)
    torch.manual_seed(0)
    checkpoint, path = tune.get_checkpoint(), None
    if checkpoint is not None:
        path = str(Path(checkpoint.to_directory()) / _CHECKPOINT)
    trainer = L.Trainer(
        max_epochs=MAX_EPOCHS,
        callbacks=[_Told(folder, saved, config["width"])],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(**config), datamodule=Digits(), ckpt_path=path, weights_only=False)


def tune_until(seconds: float, seed: int, slots: int, folder: Path, *, resources: bool) -> None:
    """Tune until Ray's own time budget is used.

    ASHA has its defaults (reduction factor 4, the first rung after one epoch) and the length of a
    training. TPE chooses configurations, as for the others. Actors are reused to save starts.
    """
    scheduler: TrialScheduler = ASHAScheduler(max_t=MAX_EPOCHS)
    if resources:
        scheduler = ResourceChangingScheduler(base_scheduler=scheduler)
    work: Callable[[dict[str, Any]], None] = tune.with_parameters(
        train, folder=str(folder), saved=resources
    )
    tune.Tuner(
        tune.with_resources(work, {"cpu": 1}),
        param_space={
            "width": tune.choice([16, 20, 24]),
            "dropout": tune.uniform(0.0, 0.5),
            "lr": tune.loguniform(1e-4, 0.1),
            "weight_decay": tune.loguniform(1e-6, 1e-2),
        },
        tune_config=tune.TuneConfig(
            metric="val_acc",
            mode="max",
            scheduler=scheduler,
            search_alg=OptunaSearch(sampler=TPESampler(seed=seed)),
            num_samples=-1,
            max_concurrent_trials=slots,
            time_budget_s=seconds,
            reuse_actors=not resources,
        ),
        run_config=tune.RunConfig(storage_path=str(folder / "ray"), verbose=0),
    ).fit()
