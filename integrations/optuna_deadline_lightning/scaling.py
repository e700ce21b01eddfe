"""Counts the steps of a fit whose global batch grows with its slots.

Lightning counts steps, and an epoch has fewer of them on more slots. So positions in an epoch are
counted in base batches here, and Lightning gets the number of steps of its epoch in this segment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from optuna_deadline_torch.consensus import Consensus
from optuna_deadline_torch.sampler import ElasticBatchSampler
from optuna_deadline_torch.scaling import Scaling

from optuna_deadline.errors import DeadlineError


class ScaledFit:
    """One scaling rule in one fit.

    Args:
        scaling: The rule.
        world_size: The number of ranks.
    """

    def __init__(self, scaling: Scaling, world_size: int) -> None:
        self.scaling = scaling
        self._ranks = world_size
        self._sampler: ElasticBatchSampler | None = None
        self._size = 0  # base batches in an epoch
        self._epochs = 0  # the user's setting
        self._place = (0, 0)  # the step, and the base batch, at which this epoch starts here

    # ---- the positions

    @property
    def size(self) -> int:
        """Base batches in an epoch."""
        return self._size

    def adopt(self, samplers: Sequence[ElasticBatchSampler], steps: int, batch: int) -> None:
        """Adopt the sampler of the training data, which resumes after some steps of an epoch.

        Raises:
            DeadlineError: There are several.
        """
        if len(samplers) > 1:
            raise DeadlineError(f"scaling={self.scaling.rule!r} needs one training loader.")
        self._sampler = samplers[0] if samplers else None
        self._size = len(samplers[0].batches) if samplers else 0
        self._place = steps, batch

    def batch(self, step: int) -> int:
        """The base batch at which a step of this epoch starts."""
        assert self._sampler is not None
        begun, first = self._place
        return min(first + (step - begun) * self._sampler.per_step, self._size)

    def progress(self, trainer: pl.Trainer) -> float:
        """The progress in passes over the data with fractions."""
        if self._sampler is None:
            return float(trainer.current_epoch)
        done = self.batch(trainer.fit_loop.batch_idx + 1)
        return trainer.current_epoch + done / max(self._size, 1)

    # ---- the checkpoint

    def state(self, step: int) -> dict[str, Any]:
        """The state for the next segment, with ``step`` of the epoch."""
        batch = self.batch(step) if step and self._sampler is not None else 0
        return {"batch": batch, **(self.scaling.state() or {})}

    def load(self, state: dict[str, Any] | None) -> int:
        """Restore :meth:`state`; returns the next base batch."""
        self.scaling.load(state)
        return int(state["batch"]) if state else 0

    # ---- from the first step to the last

    def prepare(self, trainer: pl.Trainer) -> None:
        """Before the loops are restored: refuse what does not fit, and take over the steps."""
        _refuse(trainer, self.scaling.rule)
        self.scaling.watch(*trainer.optimizers, _scaler(trainer))
        self._epochs = int(trainer.max_epochs or 0)
        module: Any = trainer.lightning_module
        step = module.lr_scheduler_step

        def advance(scheduler: Any, metric: Any) -> None:
            for _ in range(self._times(trainer, scheduler)):
                step(scheduler, metric)

        module.lr_scheduler_step = advance
        if self.scaling.rule == "adascale":  # it ends by the gain of its steps, not by passes
            trainer.fit_loop.max_epochs = -1

    def start(self, trainer: pl.Trainer, consensus: Consensus) -> None:
        """Before the first step."""
        if self._ranks > 1:
            self.scaling.listen(trainer.strategy.model, consensus)
        ended = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        if ended and self._place == (0, 0):  # Lightning starts in the epoch that has ended
            self._place = ended, self._size
        self._say_steps(trainer)
        if self._sampler is None:
            trainer.fit_loop.max_epochs = self._epochs
        else:
            self.end_step(trainer)  # it may have nothing left to do

    def begin_epoch(self, trainer: pl.Trainer) -> None:
        """Start an epoch, at its beginning."""
        self._place = 0, 0
        self._say_steps(trainer)
        self.scaling.begin_pass(math.inf if self._sampler is None else self._size)

    def begin_step(self, step: int) -> None:
        """Start a step."""
        if self._sampler is None:  # data that is not distributed trains on one slot
            self.scaling.begin(1, even=False)
            return
        batch = self.batch(step)
        growth = self._sampler.growth(batch)
        self.scaling.begin(growth, even=growth > 1 and self._sampler.even(batch))

    def end_step(self, trainer: pl.Trainer) -> None:
        """End a step; AdaScale's training may be complete."""
        passed = trainer.current_epoch
        if self.scaling.rule == "adascale" and self.scaling.complete(self._epochs, passed):
            trainer.should_stop = True

    def last_pass(self, trainer: pl.Trainer) -> int:
        """The number of the last pass over the data, if known."""
        return self.scaling.passes(self._epochs, self.progress(trainer)) - 1

    # ---- internal

    def _say_steps(self, trainer: pl.Trainer) -> None:
        """Set Lightning's number of steps of this epoch."""
        if self._sampler is None:
            return
        begun, first = self._place
        left = math.ceil((self._size - first) / self._sampler.per_step)
        fit = trainer.fit_loop
        assert fit._data_fetcher is not None
        # Not earlier, so that `estimated_stepping_batches` is that of the base batch.
        fit.max_batches = fit._data_fetcher.length = self._sampler.steps = begun + left
        if isinstance(trainer.val_check_interval, float):
            trainer.val_check_batch = max(1, int(fit.max_batches * trainer.val_check_interval))

    def _times(self, trainer: pl.Trainer, scheduler: Any) -> int:
        for config in trainer.lr_scheduler_configs:
            if config.scheduler is scheduler and not config.reduce_on_plateau:
                return self.scaling.ticks if config.interval == "step" else self.scaling.epochs()
        return 1


def _scaler(trainer: pl.Trainer) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def _refuse(trainer: pl.Trainer, rule: str | None) -> None:
    """Refuse fits whose steps cannot be longer.

    Raises:
        DeadlineError: This one's cannot.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    accumulates = trainer.accumulate_grad_batches != 1 or any(
        isinstance(one, GradientAccumulationScheduler) for one in callbacks
    )
    limit: Any = trainer.limit_train_batches
    for refused, what in (
        (not trainer.lightning_module.automatic_optimization, "automatic optimization"),
        (accumulates, "accumulate_grad_batches=1: a larger batch takes the place of several"),
        (
            limit != 1.0 or getattr(trainer, "overfit_batches", 0) > 0,
            "whole epochs, without limit_train_batches",
        ),
        (trainer.max_steps >= 0, "max_epochs in place of max_steps"),
        (trainer.max_epochs in (None, -1), "max_epochs"),
        (
            any(config.frequency != 1 for config in trainer.lr_scheduler_configs),
            "learning-rate schedulers with frequency=1",
        ),
    ):
        if refused:
            raise DeadlineError(f"scaling={rule!r} needs {what}.")
