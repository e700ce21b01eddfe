"""The position of training, and the positions from which Lightning resumes exactly.

Lightning resumes exactly from a checkpoint in the middle of an epoch or after a validation. From a
checkpoint between the last batch before a validation and that validation, it skips the validation;
at the end of an epoch, its counters are off by one from there on. Trials do not leave at those few
positions: the validation follows at once, and the position after it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from optuna_deadline_torch.seeding import MOVING, READING


def after_hooks(
    trainer: pl.Trainer,
    owner: Callback,
    *,
    start: Callable[[], None],
    batch: Callable[[], None],
    validation: Callable[[], None],
    fetch: Callable[[int], None],
    epoch: Callable[[], None],
) -> Callable[[], None]:
    """Call back at training's start and the ends of batches, after the module's hooks.

    Also when a batch is fetched, for which there is no hook.

    Lightning runs the hooks of callbacks first: a checkpoint made in one of them lacks what the
    module does in its own, such as averaging weights or stepping a scheduler.

    Args:
        trainer: The trainer, which is about to train.
        owner: The callback; a learning-rate finder trains without it.
        start: Called after ``on_train_start``.
        batch: Called after ``on_train_batch_end``.
        validation: Called after ``on_validation_end``.
        fetch: Called with ``READING`` before a training batch is fetched, and with ``MOVING``
            before it is moved to its device.
        epoch: Called before all code that reads an epoch's metrics in ``on_train_epoch_end``.

    Returns:
        A function that undoes it.
    """
    connector, strategy = trainer._logger_connector, trainer.strategy
    start_training = strategy.on_train_start
    end_batch, end_validation = connector.on_batch_end, strategy.on_validation_end
    loop: Any = trainer.fit_loop.epoch_loop
    before_fetch, after_fetch = loop._on_before_fetch, loop._on_after_fetch
    end_epoch = connector.epoch_end_reached

    def watched() -> bool:
        return owner in trainer.callbacks  # type: ignore[attr-defined]

    def training_started() -> None:
        start_training()
        start()

    def batch_ended() -> None:
        end_batch()
        if trainer.training and watched():
            batch()

    def validation_ended() -> None:
        end_validation()
        if watched():
            validation()

    def fetch_begins() -> None:
        before_fetch()
        if watched():
            fetch(READING)

    def fetch_ends() -> None:
        after_fetch()
        if watched():
            fetch(MOVING)

    def epoch_ended() -> None:
        end_epoch()
        if trainer.training and watched():
            epoch()

    def undo() -> None:
        strategy.on_train_start = start_training  # type: ignore[method-assign]
        connector.on_batch_end = end_batch  # type: ignore[method-assign]
        strategy.on_validation_end = end_validation  # type: ignore[method-assign]
        loop._on_before_fetch, loop._on_after_fetch = before_fetch, after_fetch
        connector.epoch_end_reached = end_epoch  # type: ignore[method-assign]

    # What Lightning calls right after the module's hook; at a batch's end before it counts it.
    strategy.on_train_start = training_started  # type: ignore[method-assign]
    connector.on_batch_end = batch_ended  # type: ignore[method-assign]
    strategy.on_validation_end = validation_ended  # type: ignore[method-assign]
    # Names that the loop passes to its data fetcher, for the profiler.
    loop._on_before_fetch, loop._on_after_fetch = fetch_begins, fetch_ends
    connector.epoch_end_reached = epoch_ended  # type: ignore[method-assign]
    return undo


def position(trainer: pl.Trainer) -> tuple[int, int]:
    """The next epoch and batch; valid at a batch's or a validation's end."""
    done = trainer.fit_loop.batch_idx + 1
    if done >= trainer.num_training_batches or trainer.is_last_batch:
        return trainer.current_epoch + 1, 0
    return trainer.current_epoch, done


def progress(trainer: pl.Trainer) -> float:
    """The progress in epochs with fractions; in whole ones if the length is unknown."""
    epoch, batch = position(trainer)
    return epoch + (batch / trainer.num_training_batches if batch else 0.0)


def resumes_exactly(trainer: pl.Trainer) -> bool:
    """Whether a checkpoint made at this batch's end resumes exactly."""
    done = trainer.fit_loop.batch_idx + 1
    if done >= trainer.num_training_batches or trainer.is_last_batch or out_of_steps(trainer):
        return False
    return not _validation_follows(trainer, done)


def _validation_follows(trainer: pl.Trainer, done: int) -> bool:
    every = trainer.check_val_every_n_epoch
    if not trainer.enable_validation or (every and (trainer.current_epoch + 1) % every):
        return False
    if trainer.should_stop:
        return True
    interval = trainer.val_check_batch
    if interval is None or math.isinf(interval):  # by time, or at the end only
        return False
    count = trainer.fit_loop.total_batch_idx + 1 if every is None else done
    return count % int(interval) == 0


def out_of_steps(trainer: pl.Trainer) -> bool:
    """Whether ``max_steps`` is reached."""
    return 0 <= trainer.max_steps <= trainer.global_step


def ends_by_itself(trainer: pl.Trainer) -> bool:
    """Whether ``fit`` is about to return, so that leaving would only delay the result."""
    last_epoch = trainer.max_epochs not in (None, -1) and (
        position(trainer)[0] >= (trainer.max_epochs or 0)
    )
    return trainer.should_stop or last_epoch or out_of_steps(trainer)


def finish_batch(trainer: pl.Trainer) -> None:
    """Step a ReduceLROnPlateau of the steps, as Lightning does after saving a checkpoint.

    Call before the first step of a resumed fit.
    """
    if trainer.global_step:  # otherwise its checkpoint is from before the first step
        loop = trainer.fit_loop.epoch_loop
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)


def count_skipped(checkpoint: dict[str, Any]) -> None:
    """Count batches at which ``on_train_batch_start`` has ended an epoch as trained.

    Lightning counts them as read and processed, but not as started and completed, and takes a
    checkpoint with such counts for one of another moment.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]
    skipped = progress["ready"] - progress["started"]
    progress["started"] += skipped
    progress["completed"] += skipped


def resumed_in_full(trainer: pl.Trainer) -> None:
    """Complete the end of a resumed epoch; call in ``on_train_epoch_end``.

    Lightning does not step a ReduceLROnPlateau at the end of a resumed epoch, because its
    checkpoints hold no metrics. The checkpoints here do.
    """
    trainer.fit_loop._restarting = False
