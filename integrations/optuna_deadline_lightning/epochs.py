"""What callbacks set up at an epoch's start, for an epoch that is resumed in its middle.

Lightning calls no ``on_train_epoch_start`` then. What two of its own set up there is kept in no
checkpoint: how many batches make a step, and the scheduler of an average.
"""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging


def begin_again(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Let them set it up; call in ``on_train_start`` of a fit that resumes."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GradientAccumulationScheduler):
            callback.on_train_epoch_start(trainer, module)
        elif isinstance(callback, StochasticWeightAveraging):
            _average_again(callback, trainer, module)


def _average_again(
    callback: StochasticWeightAveraging, trainer: pl.Trainer, module: pl.LightningModule
) -> None:
    # Only where it was at it: in the epoch of the batch norms, its last, nobody leaves.
    if callback._scheduler_state is None or trainer.current_epoch > callback.swa_end:
        return
    groups = trainer.optimizers[0].param_groups
    rates = [group["lr"] for group in groups]  # restored; a new scheduler sets its own
    callback.on_train_epoch_start(trainer, module)
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
