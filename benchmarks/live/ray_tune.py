"""Ray Tune's contenders: its own loop, searcher and schedulers on the demo's tasks.

The program is typical for Ray's users: Lightning in a function that reports each epoch. Reports
are also appended to a file with their times, since Ray has no Optuna study.
"""

from __future__ import annotations

import importlib
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
from optuna_deadline_demo import TASKS
from optuna_deadline_demo.training import QUIET, Objective, hush
from ray import tune
from ray.tune.schedulers import ASHAScheduler, ResourceChangingScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from benchmarks.live.contender import Contest
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

    def __init__(self, folder: str, saved: bool, monitor: str, width: int) -> None:
        self._folder, self._saved = Path(folder), saved
        self._monitor, self._width = monitor, width

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Report after the validation of the epoch."""
        value = float(trainer.callback_metrics[self._monitor])
        epoch, name = trainer.current_epoch + 1, tune.get_context().get_trial_id()
        append(self._folder, Report(time.time(), name, epoch, value, self._width))
        if not self._saved:
            tune.report({self._monitor: value})
            return
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_checkpoint(Path(folder) / _CHECKPOINT)
            tune.report({self._monitor: value}, checkpoint=tune.Checkpoint.from_directory(folder))


def train(config: dict[str, Any], *, task: str, folder: str, saved: bool) -> None:
    """The demo's objective, with Ray's parameters in place of a trial's suggestions."""
    objective = _objective(task)
    hush()
    granted = tune.get_context().get_trial_resources() if saved else None
    torch.set_num_threads(int(granted.required_resources.get("CPU", 1)) if granted else 1)
    torch.manual_seed(0)
    checkpoint, path = tune.get_checkpoint(), None
    if checkpoint is not None:
        path = str(Path(checkpoint.to_directory()) / _CHECKPOINT)
    trainer = L.Trainer(
        max_epochs=objective.max_epochs,
        callbacks=[_Told(folder, saved, objective.monitor, config["width"])],
        accelerator="cpu",
        **QUIET,
        **objective.options(config),
    )
    data, model = objective.data(config), objective.network(**config)
    trainer.fit(model, datamodule=data, ckpt_path=path, weights_only=False)


def _objective(task: str) -> Objective:
    found: Objective = importlib.import_module(f"optuna_deadline_demo.{task}").objective
    return found


def tune_until(contest: Contest, *, resources: bool) -> None:
    """Tune until Ray's own time budget is used.

    ASHA has its defaults (reduction factor 4, the first rung after one epoch) and the length of a
    training. TPE chooses configurations, as for the others. Actors are reused to save starts.
    """
    objective, slots = _objective(contest.task), contest.slots
    scheduler: TrialScheduler = ASHAScheduler(max_t=objective.max_epochs)
    if resources:
        scheduler = ResourceChangingScheduler(base_scheduler=scheduler)
    mode = "max" if TASKS[contest.task].direction == "maximize" else "min"
    work: Callable[[dict[str, Any]], None] = tune.with_parameters(
        train, task=contest.task, folder=str(contest.folder), saved=resources
    )
    tune.Tuner(
        tune.with_resources(work, {"cpu": 1}),
        tune_config=tune.TuneConfig(
            metric=objective.monitor,
            mode=mode,
            scheduler=scheduler,
            search_alg=OptunaSearch(
                objective.suggest, objective.monitor, mode, sampler=TPESampler(seed=contest.seed)
            ),
            num_samples=-1,
            max_concurrent_trials=slots,
            time_budget_s=contest.seconds,
            reuse_actors=not resources,
        ),
        run_config=tune.RunConfig(storage_path=str(contest.folder / "ray"), verbose=0),
    ).fit()
