"""What of a fit lies on its device, for a trial that is parked."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from optuna_deadline_torch.holdings import Holdings


def holdings(trainer: pl.Trainer) -> Holdings:
    """The module, its optimizers, the gradient scaler, all callbacks, and the metrics so far.

    Each of them, and the data module, may have ``on_park`` and ``on_unpark``.
    """
    for logger in trainer.loggers:
        logger.save()  # the process may be ended while it waits
    fit = trainer.fit_loop
    loops = (fit, fit.epoch_loop, fit.epoch_loop.val_loop)
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    objects = [
        trainer.lightning_module,
        *trainer.optimizers,
        trainer.precision_plugin,
        *callbacks,
        getattr(trainer, "datamodule", None),
        trainer._logger_connector,
        *(getattr(loop, "_results", None) for loop in loops),
    ]
    return Holdings([one for one in objects if one is not None], beyond=(pl.Trainer,))
