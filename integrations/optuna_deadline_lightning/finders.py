"""Lightning's searches for a learning rate and a batch size, in a trial of several segments.

Each ends with the trainer at its very beginning, instead of the trial's position.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.utilities.parsing import (
    lightning_getattr,
    lightning_hasattr,
    lightning_setattr,
)

from optuna_deadline.errors import DeadlineError


def refuse_batch_size(trainer: pl.Trainer) -> None:
    """Refuse callbacks that change the batch size.

    Raises:
        DeadlineError: One of them searches for it.
    """
    if any(isinstance(one, BatchSizeFinder) for one in _callbacks(trainer)):
        raise DeadlineError(
            "BatchSizeFinder searches again each time that a trial resumes, and on one slot only:"
            " give the loader a batch size, or draw one with trial.suggest_categorical."
        )


def rates(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, float]:
    """The learning rates that were found, by the module's attribute."""
    found: dict[str, float] = {}
    for one in _callbacks(trainer):
        if isinstance(one, LearningRateFinder):
            names = [one._attr_name] if one._attr_name else ["lr", "learning_rate"]
            name = next((name for name in names if lightning_hasattr(module, name)), None)
            rate = None if name is None else lightning_getattr(module, name)
            if name is not None and isinstance(rate, (int, float)):
                found[name] = float(rate)
    return found


def stop_searching(trainer: pl.Trainer) -> None:
    """Skip the search, because the trial has its rate; call in ``setup`` of a resumed fit.

    A ``Tuner`` searches again: it has started a fit for that alone, and returns what it finds.
    """
    for one in _callbacks(trainer):
        if isinstance(one, LearningRateFinder) and not one._early_exit:
            one.on_fit_start = _nothing  # type: ignore[assignment]


def set_rates(module: pl.LightningModule, found: dict[str, float]) -> None:
    """Restore them in the module; the optimizer's own are restored with it."""
    for name, rate in found.items():
        lightning_setattr(module, name, rate)


def _callbacks(trainer: pl.Trainer) -> list[Any]:
    found: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return found


def _nothing(*_: Any) -> None:
    """Do nothing: the search was made in the trial's first segment."""
