"""The numbers of reports, and the reported metric.

Reports are numbered by progress, so that a step means the same in every trial. An epoch has as
many steps as validations: four with ``val_check_interval=0.25``. Its length in batches, which may
differ between trials, does not matter. With an interval in batches, a step is one interval. A
number follows from the position in training, so a paused trial resumes with the numbers that it
would have had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch

from optuna_deadline.errors import DeadlineError
from optuna_deadline_lightning import boundaries
from optuna_deadline_lightning.scaling import ScaledFit

_ROUNDING = 1e-6  # of a step, in a position that is a sum of fractions


class ReportSteps:
    """The steps of one fit.

    Args:
        growing: The scaling rule, if steps of the optimizer take more than a batch.

    Attributes:
        last: The last reported step; -1 before the first.
    """

    def __init__(self, growing: ScaledFit | None = None) -> None:
        self._growing = growing
        self.last = -1

    def reached(self, trainer: pl.Trainer) -> int | None:
        """The step of the validation that just ends; None if it was reported already.

        A short epoch may have more validations than steps: the first of each step counts.
        """
        step = max(0, math.ceil(self.progress(trainer) - _ROUNDING) - 1)
        if _by_time(trainer):
            step = self.last + 1
        elif math.isinf(trainer.num_training_batches) and _batches(trainer) is None:
            step = trainer.current_epoch  # also of a validation at a stop within it
        if step <= self.last:
            return None
        self.last = step
        return step

    def progress(self, trainer: pl.Trainer) -> float:
        """The progress in steps with fractions."""
        if _by_time(trainer):
            return float(self.last + 1)
        every = _batches(trainer)
        if every is None:
            return self._epochs(trainer) * _validations(trainer)
        size = self._size(trainer)
        across = trainer.check_val_every_n_epoch is None and self._growing is None
        if across or math.isinf(size):
            return (trainer.fit_loop.total_batch_idx + 1) / every
        return self._epochs(trainer) * size / every

    def horizon(self, trainer: pl.Trainer) -> int | None:
        """The step of the fit's last validation; None if unknown."""
        if _by_time(trainer):
            return None
        epochs, every = self._all_epochs(trainer), _batches(trainer)
        if every is None:
            if epochs is None:
                return None
            nth = trainer.check_val_every_n_epoch or 1
            done = max(epochs // nth * nth, epochs if nth == 1 else nth)
            return max(1, math.floor(done * _validations(trainer) + _ROUNDING)) - 1
        size, batches = self._size(trainer), None
        if epochs is not None and not math.isinf(size):
            batches = math.floor(epochs * size + _ROUNDING)
        elif trainer.max_steps > 0:
            batches = trainer.max_steps * trainer.accumulate_grad_batches
        if batches is None:
            return None
        last = batches // every * every
        if trainer.check_val_every_n_epoch is not None and not math.isinf(size):
            whole, rest = divmod(batches, int(size))  # counted from 0 in each epoch
            if rest < every:
                whole, rest = whole - 1, int(size)
            last = whole * int(size) + rest // every * every
        return max(1, math.ceil(last / every)) - 1

    def _epochs(self, trainer: pl.Trainer) -> float:
        if self._growing is not None:
            return self._growing.progress(trainer)
        return boundaries.progress(trainer)

    def _all_epochs(self, trainer: pl.Trainer) -> float | None:
        """The number of epochs that the fit trains, with fractions."""
        if self._growing is not None:
            return self._growing.last_pass(trainer) + 1
        limits = [float(trainer.max_epochs)] if trainer.max_epochs not in (None, -1) else []
        batches = trainer.num_training_batches
        if trainer.max_steps > 0 and 0 < batches < math.inf:
            limits.append(trainer.max_steps / math.ceil(batches / trainer.accumulate_grad_batches))
        return min(limits) if limits else None

    def _size(self, trainer: pl.Trainer) -> float:
        return trainer.num_training_batches if self._growing is None else self._growing.size


def _by_time(trainer: pl.Trainer) -> bool:
    return getattr(trainer, "_val_check_time_interval", None) is not None


def _batches(trainer: pl.Trainer) -> int | None:
    """Batches between two validations, if the interval is given in batches."""
    every = trainer.val_check_interval
    return every if isinstance(every, int) else None


def _validations(trainer: pl.Trainer) -> int:
    """Validations in an epoch, if the interval is a part of it."""
    return max(1, math.floor(1 / trainer.val_check_interval + _ROUNDING))


def monitored(metrics: Mapping[str, Any], monitor: str) -> float:
    """The monitored metric as a number, NaN included.

    Raises:
        DeadlineError: The metric is not logged, or is not one number; the message lists the logged
            ones.
    """
    if monitor not in metrics:
        logged = ", ".join(sorted(metrics)) or "nothing"
        raise DeadlineError(
            f"No metric {monitor!r} is logged at the end of validation; logged: {logged}."
            f" Call self.log({monitor!r}, ...) in validation_step, or change monitor=."
        )
    try:
        return float(metrics[monitor])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DeadlineError(f"The metric {monitor!r} is not a number: {error}") from error


def numbers(metrics: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The metrics that are one number each, on the host."""
    found = {name: torch.as_tensor(one).detach().cpu() for name, one in metrics.items()}
    return {name: one for name, one in found.items() if one.numel() == 1}
