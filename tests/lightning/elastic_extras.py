"""Callbacks and plugins whose state has to go on with a trial, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from elastic_harness import Plan
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins.precision import MixedPrecision


class Counting(Callback):
    """A user's callback with a state of its own."""

    def __init__(self) -> None:
        self.batches = 0
        self.mean = torch.zeros(2)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        self.batches += 1
        self.mean = 0.9 * self.mean + 0.1 * module.body[0].bias.detach().float()[:2]

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches, self.mean = state["batches"], state["mean"]


def callbacks(plan: Plan) -> list[Callback]:
    made: dict[str, Any] = {
        "ema": lambda: EMAWeightAveraging(decay=0.9),
        "swa": lambda: StochasticWeightAveraging(0.05, swa_epoch_start=2, annealing_epochs=2),
        "best": lambda: ModelCheckpoint(
            plan.folder + "/best", monitor="val_acc", mode="max", save_top_k=2, save_last=True
        ),
        "best mean": lambda: ModelCheckpoint(
            plan.folder + "/best", monitor="loss_epoch", save_on_train_epoch_end=True
        ),
        "stop by mean": lambda: EarlyStopping(
            "loss_epoch", patience=1, min_delta=0.03, check_on_train_epoch_end=True
        ),
        "every": lambda: ModelCheckpoint(
            plan.folder + "/every", every_n_train_steps=4, save_top_k=-1
        ),
        "accumulation": lambda: GradientAccumulationScheduler({0: 1, 1: 2, 2: 3}),
        "counting": Counting,
        "find": lambda: LearningRateFinder(1e-4, num_training_steps=30),
    }
    return [made[name]() for name in plan.extras if name in made]


def plugins(plan: Plan) -> list[Any]:
    if "scaler" not in plan.extras:
        return []
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    return [MixedPrecision("16-mixed", "cpu", scaler)]


def states(trainer: pl.Trainer) -> dict[str, Any]:
    """What the callbacks know at the end, without the names of files."""
    found: dict[str, Any] = {}
    for one in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(one, ModelCheckpoint):
            scores = sorted(float(value) for value in one.best_k_models.values())
            best = None if one.best_model_score is None else float(one.best_model_score)
            files = sorted(path.name for path in Path(one.dirpath or "").iterdir())
            found[one.state_key] = [scores, best, *files]
        elif isinstance(one, Counting):
            found["counting"] = [one.batches, one.mean.tolist()]
        elif isinstance(one, EMAWeightAveraging):
            assert one._average_model is not None
            found["ema"] = [one._latest_update_step, int(one._average_model.n_averaged)]
        elif isinstance(one, StochasticWeightAveraging):
            found["swa"] = None if one.n_averaged is None else int(one.n_averaged)
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is not None:
        found["scaler"] = scaler.state_dict()
    return found
