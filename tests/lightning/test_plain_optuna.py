"""Under plain Optuna the callback reports and prunes as Optuna's own does."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import optuna
import pytest
import torch
from elastic_harness import Plan, PlayedSegment, PlayedTrial
from lightning.pytorch.callbacks import BatchSizeFinder, Callback
from lightning.pytorch.strategies import DDPStrategy
from optuna.trial import TrialState
from optuna_deadline_lightning import DeadlineCallback
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from optuna_deadline.errors import DeadlineError


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    level = logging.getLogger("lightning.pytorch").level
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.getLogger("lightning.pytorch").setLevel(level)


class OptunasOwn(Callback):
    """What optuna-integration's PyTorchLightningPruningCallback does on one device."""

    def __init__(self, trial: optuna.Trial, monitor: str) -> None:
        self.trial, self.monitor = trial, monitor

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.trial.report(
            float(trainer.callback_metrics[self.monitor]), step=trainer.current_epoch
        )
        if self.trial.should_prune():
            raise optuna.TrialPruned


class Small(pl.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.layer, self.lr = nn.Linear(4, 1), lr

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Stream(IterableDataset[Any]):
    """The samples, without saying how many."""

    def __iter__(self) -> Iterator[Any]:
        return iter(dataset())


def dataset() -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


def objective(
    make: Callable[[optuna.Trial], Callback],
    *,
    stream: bool = False,
    also: Callback | None = None,
    **options: Any,
) -> Callable[[optuna.Trial], float]:
    def run(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-4, 0.3, log=True)
        torch.manual_seed(0)
        callback = make(trial)
        trainer = pl.Trainer(
            max_epochs=5,
            callbacks=[callback, *([also] if also else [])],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **(
                callback.trainer_options()
                if isinstance(callback, DeadlineCallback)
                else {"accelerator": "cpu"}
            ),
            **options,
        )
        loader = DataLoader(Stream(), 16) if stream else DataLoader(dataset(), 16, shuffle=True)
        trainer.fit(Small(lr), loader, DataLoader(dataset(), 64))
        return float(trainer.callback_metrics["val_loss"])

    return run


def study() -> optuna.Study:
    return optuna.create_study(
        sampler=optuna.samplers.RandomSampler(seed=4),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=0),
    )


def test_same_reports_and_decisions_as_optunas_own() -> None:
    theirs, ours = study(), study()
    theirs.optimize(objective(lambda trial: OptunasOwn(trial, "val_loss")), n_trials=7)
    ours.optimize(objective(lambda trial: DeadlineCallback(trial, "val_loss")), n_trials=7)
    assert [t.state for t in ours.trials] == [t.state for t in theirs.trials]
    assert [t.intermediate_values for t in ours.trials] == [
        t.intermediate_values for t in theirs.trials
    ]
    states = {trial.state for trial in ours.trials}
    assert states == {TrialState.COMPLETE, TrialState.PRUNED}


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"val_check_interval": 0.25}, range(20)),
        ({"val_check_interval": 2}, range(10)),
        ({"val_check_interval": 3, "check_val_every_n_epoch": None}, range(6)),
        ({"val_check_interval": 5, "check_val_every_n_epoch": None}, range(4)),
    ],
)
def test_every_validation_is_a_report_also_within_an_epoch(
    options: dict[str, Any], steps: range, recwarn: pytest.WarningsRecorder
) -> None:
    often = optuna.create_study()
    run = objective(lambda trial: DeadlineCallback(trial, "val_loss"), **options)
    often.optimize(run, n_trials=1)
    assert list(often.trials[0].intermediate_values) == list(steps)
    assert not [one for one in recwarn if "already reported" in str(one.message)]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"check_val_every_n_epoch": 2}, [1, 3]),
        ({"limit_train_batches": 3}, [0, 1, 2, 3, 4]),
        ({"val_check_interval": 3, "check_val_every_n_epoch": None}, range(6)),
    ],
)
def test_data_of_unknown_length_is_reported_in_each_epoch_that_is_validated(
    options: dict[str, Any], steps: list[int] | range
) -> None:
    seen: list[float] = []

    class Values(Callback):
        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            if not trainer.sanity_checking:
                seen.append(float(trainer.callback_metrics["val_loss"]))

    streamed = optuna.create_study()
    run = objective(
        lambda trial: DeadlineCallback(trial, "val_loss"), stream=True, also=Values(), **options
    )
    streamed.optimize(run, n_trials=1)
    assert streamed.trials[0].intermediate_values == dict(zip(steps, seen, strict=True))


def test_a_trial_is_pruned_within_its_first_epoch() -> None:
    threshold = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0))
    run = objective(lambda trial: DeadlineCallback(trial, "val_loss"), val_check_interval=0.25)
    threshold.optimize(run, n_trials=1)
    assert threshold.trials[0].state is TrialState.PRUNED
    assert list(threshold.trials[0].intermediate_values) == [0]


def test_out_of_time_ends_the_fit_with_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def third_report(trial: optuna.Trial) -> bool:
        return len(trial.study.get_trials()[trial.number].intermediate_values) == 3

    module = importlib.import_module("optuna_deadline._out_of_time")
    monkeypatch.setattr(module, "out_of_time", third_report)
    short = study()
    short.optimize(objective(lambda trial: DeadlineCallback(trial, "val_loss")), n_trials=1)
    trial = short.trials[0]
    assert trial.state is TrialState.COMPLETE
    assert sorted(trial.intermediate_values) == [0, 1, 2]
    assert trial.value == trial.intermediate_values[2]


def test_metric_that_is_not_logged() -> None:
    with pytest.raises(DeadlineError, match=r"No metric 'val_acc' .* logged: val_loss\."):
        study().optimize(objective(lambda trial: DeadlineCallback(trial, "val_acc")), n_trials=1)


def test_fit_without_validation_is_refused() -> None:
    run = objective(lambda trial: DeadlineCallback(trial, "val_loss"), limit_val_batches=0)
    with pytest.raises(DeadlineError, match="reports after each validation"):
        study().optimize(run, n_trials=1)


def test_several_devices_are_refused() -> None:
    trial = study().ask()
    callback = DeadlineCallback(trial, "val_loss")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_spawn",
        logger=False,
        enable_checkpointing=False,
        callbacks=[callback],
    )
    with pytest.raises(DeadlineError, match="elastic worker"):
        callback.setup(_attached(trainer), Small(0.1), "fit")


def _attached(trainer: pl.Trainer) -> pl.Trainer:
    trainer.strategy.connect(Small(0.1))
    trainer.fit_loop.epoch_loop.val_loop._data_source.instance = DataLoader(dataset())
    return trainer


def test_options_are_lightnings_own_names() -> None:
    callback = DeadlineCallback(study().ask(), "val_loss")
    assert callback.ckpt_path is None
    options = callback.trainer_options(plugins=[])
    assert options["devices"] == 1 and options["strategy"] == "auto"


def test_explicit_loader_draws_a_new_order_each_epoch() -> None:
    callback = DeadlineCallback(study().ask(), "val_loss", seed=3)
    loader = callback.loader(dataset(), batch_size=16, shuffle=True)
    first = [batch[0] for batch in loader]
    assert len(loader) == len(first) == 4
    loader.batch_sampler.sampler.set_epoch(1)  # what Lightning does
    assert not torch.equal(torch.cat(first), torch.cat([batch[0] for batch in loader]))


@pytest.mark.parametrize(
    "strategy", ["ddp_spawn", "ddp_notebook", DDPStrategy(start_method="fork")]
)
def test_strategies_that_start_processes_are_refused_under_a_worker(
    tmp_path: Path, strategy: Any
) -> None:
    callback = DeadlineCallback(PlayedTrial(PlayedSegment(Plan(str(tmp_path)), 0)), "val_loss")
    with pytest.raises(DeadlineError, match="starts its own processes"):
        callback.trainer_options(strategy=strategy)
    assert callback.trainer_options(strategy=DDPStrategy())["strategy"] == "auto"
    assert callback.trainer_options(strategy="ddp_find_unused_parameters_true")


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_2", "model_parallel"])
def test_sharded_strategies_are_refused_under_a_worker(tmp_path: Path, strategy: str) -> None:
    callback = DeadlineCallback(PlayedTrial(PlayedSegment(Plan(str(tmp_path)), 0)), "val_loss")
    with pytest.raises(DeadlineError, match="cannot change its number of slots"):
        callback.trainer_options(strategy=strategy)


def test_a_search_for_the_batch_size_is_refused_under_a_worker(tmp_path: Path) -> None:
    callback = DeadlineCallback(PlayedTrial(PlayedSegment(Plan(str(tmp_path)), 0)), "val_loss")
    trainer = pl.Trainer(
        logger=False,
        enable_checkpointing=False,
        callbacks=[BatchSizeFinder(), callback],
        **callback.trainer_options(),
    )
    with pytest.raises(DeadlineError, match="BatchSizeFinder searches again each time"):
        callback.setup(_attached(trainer), Small(0.1), "fit")


@pytest.mark.parametrize(
    ("options", "checked"), [({}, [0]), ({"num_sanity_val_steps": 1}, [0, 1])]
)
def test_only_the_first_trial_runs_the_sanity_validation(
    options: dict[str, Any], checked: list[int]
) -> None:
    trials: list[int] = []

    class Noting(Callback):
        def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
            trials.append(trainer.callbacks[0].trial.number)  # type: ignore[attr-defined]

    study = optuna.create_study()
    make = lambda trial: DeadlineCallback(trial, "val_loss")  # noqa: E731
    study.optimize(objective(make, also=Noting(), **options), n_trials=2)
    assert trials == checked


def test_a_second_trainer_with_the_same_callback_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask()
    callback = DeadlineCallback(trial, "val_loss")
    train = objective(lambda _: callback)
    train(trial)
    assert "has reported another fit" not in caplog.text
    train(trial)
    assert "has reported another fit" in caplog.text and 'fit="stage-2"' in caplog.text
