"""The callback by which a Lightning objective follows its deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import lightning.pytorch as pl
import optuna
import torch
from lightning.pytorch.callbacks import Callback
from optuna_deadline_torch.direction import (
    direction_of,
    known_direction,
    warn_of_minimized_score,
)
from optuna_deadline_torch.first_trial import check_first
from optuna_deadline_torch.loaders import elastic_loader
from optuna_deadline_torch.ranks import serve_store
from optuna_deadline_torch.sampler import ElasticBatchSampler
from optuna_deadline_torch.scaling import Scaling
from torch.utils.data import DataLoader, Dataset

from optuna_deadline.errors import DeadlineError
from optuna_deadline.fits import begin_fit
from optuna_deadline.segments import SegmentEnd
from optuna_deadline_lightning import boundaries, finders
from optuna_deadline_lightning.checkpoint_io import AtomicCheckpointIO, FormerFolders, peek
from optuna_deadline_lightning.elastic import ElasticFit
from optuna_deadline_lightning.loaders import LoaderRequests
from optuna_deadline_lightning.loggers import LoggerRuns
from optuna_deadline_lightning.options import (
    before_runs,
    config_is_saved,
    elastic_options,
    hush,
    leave_nothing,
    look_at_callbacks,
    only_useful,
    plain_options,
    refuse_other_slots,
    refuse_own_fetching,
    refuse_strategy,
)
from optuna_deadline_lightning.reporting import ReportSteps, monitored

_log = logging.getLogger(__name__)
_STATE = "optuna_deadline"

_SANITY_STEPS = 2  #: Lightning's default; another number is the user's


class DeadlineCallback(Callback):
    """Reports to Optuna after each validation, and follows the study's deadline and plan.

    Under ``study.optimize`` it prunes as Optuna's own callback does, and ends the fit when there
    is no time for another report. Under an elastic worker the trial also pauses, resumes and
    changes its number of slots while it trains, at any step, without losing one: the batch size
    of the training loader is that of the whole step, and each batch is distributed to the slots.

    Reports are numbered by epoch, from 0. An epoch that is validated several times has as many
    steps: with ``val_check_interval=0.25`` epoch 2 ends at step 11, whatever the batch size. With
    an interval in batches a step is one interval. Every slot evaluates the whole validation
    set, so that a value does not depend on how many there are.

    Args:
        trial: The trial that the objective was called with.
        monitor: The metric to report, as logged in validation.
        mode: The direction, ``"min"`` or ``"max"``; needed only if the study does not state it. A
            value that contradicts the study is refused.
        seed: Draws the order of samples and each step's random numbers, under a worker.
        save_every: Seconds between safety checkpoints, under a worker. Each best value and each
            pause is saved anyway.
        equal_shards: Use only numbers of slots that divide the batch. Otherwise slices of unequal
            length are weighted.
        scaling: A rule by whose name the batch grows with the slots, ``"linear"``, ``"sqrt"`` or
            ``"adascale"``; None keeps batch and learning rate on any number of slots.
        check: Whether the study's first trial is checked before its first step: a few steps
            undisturbed, paused and on two slots, with the same parameters. The result is
            printed and stored in the trial's attribute ``optuna_deadline:check``. If a second slot
            changes the training, is refused or crashes, the trial stays on one. See
            ``optuna-deadline check``.
        fit: A name, needed where the objective trains several models one after the other, such as
            the folds of a cross-validation. Each resumes from its own state, and the steps of its
            reports follow those of the fit before.
        trust_checkpoints: Load any object from the trial's checkpoints, which can run code. By
            default they may hold tensors and plain values, paths and namespaces.

    Raises:
        DeadlineError: The objective has a second fit without a name.

    Example:
        ```python
        deadline = DeadlineCallback(trial, monitor="val_acc")
        trainer = L.Trainer(max_epochs=50, callbacks=[deadline], **deadline.trainer_options())
        trainer.fit(model, train_loader, val_loader, ckpt_path=deadline.ckpt_path)
        return trainer.callback_metrics["val_acc"].item()
        ```
    """

    def __init__(
        self,
        trial: Any,
        monitor: str,
        *,
        mode: Literal["min", "max"] | None = None,
        seed: int = 0,
        save_every: float = 60.0,
        equal_shards: bool = False,
        scaling: Literal["linear", "sqrt", "adascale"] | None = None,
        check: bool = False,
        fit: str | None = None,
        trust_checkpoints: bool = False,
    ) -> None:
        self.trial = trial
        self.monitor = monitor
        self.seed = seed
        self._trust = trust_checkpoints
        self.segment = begin_fit(trial, fit)
        if check and not self.segment.record.first_step:  # the first fit
            check_first(trial, self.segment)
        self._elastic: ElasticFit | None = None
        self._folders = FormerFolders()
        self._steps = ReportSteps()
        self._unhook: Callable[[], None] = lambda: None
        self._validating_since = 0.0
        self._trained: pl.Trainer | None = None  # by a fit that has ended
        self._runs, self._looked = LoggerRuns(trial, self.segment.record.name), False
        if trial.number == 0 and self.segment.rank == 0 and self.segment.resume is None:
            warn_of_minimized_score(monitor, known_direction(trial, self.segment, mode))
        if self.segment.elastic:
            direction = direction_of(trial, self.segment, mode)
            self._elastic = ElasticFit(
                self.segment,
                direction=direction,
                seed=seed,
                save_every=save_every,
                even=equal_shards,
                scaling=scaling,
                trust=trust_checkpoints,
            )
            self._steps = self._elastic.steps
            before_runs(self._look_at)
        else:
            known_direction(trial, self.segment, mode)  # raises for a mode that contradicts it
        if self._elastic is None:
            Scaling(scaling)  # one device has nothing to scale, but a wrong name is an error

    # ---- for the objective

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint that ``fit`` resumes from; None at the start of the trial."""
        resume = self.segment.resume
        return None if resume is None else str(resume)

    def trainer_options(
        self, *, strategy: Any = "ddp", plugins: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """The trainer's options for the trial's slots.

        Args:
            strategy: The strategy with more than one slot, such as
                ``"ddp_find_unused_parameters_true"``.
            plugins: Plugins of your own.

        Returns:
            ``accelerator``, ``devices``, ``strategy`` and related options; leave those out of the
            trainer's other arguments.

        Raises:
            DeadlineError: The strategy shards the model (FSDP, DeepSpeed), or starts processes of
                its own (``ddp_spawn``, ``ddp_notebook``).
        """
        if self._elastic is None:
            return plain_options(plugins)
        refuse_strategy(strategy)
        hush()
        ranks = self.segment.world_size
        serve_store()
        checkpoints = AtomicCheckpointIO(self.segment.folder, trust=self._trust)
        return elastic_options(ranks, checkpoints, strategy, plugins)

    def loader(
        self, dataset: Dataset[Any], *, batch_size: int, shuffle: bool = False, **options: Any
    ) -> DataLoader[Any]:
        """A training loader with the same batches under Optuna and under any number of slots.

        Ordinary loaders over map-style datasets are distributed automatically under a worker. This
        one also draws the same batches under plain Optuna.

        Args:
            dataset: A map-style dataset.
            batch_size: The number of samples in a step, over all slots.
            shuffle: Whether each epoch has its own order.
            **options: More options of ``torch.utils.data.DataLoader``.
        """
        ordinary = DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, **options)
        whole = partial(ElasticBatchSampler, seed=self.seed)
        deal = whole if self._elastic is None else self._elastic.controller.deal
        return elastic_loader(ordinary, deal)

    # ---- Lightning's hooks, in the order of a fit

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take over the training loader, and move this callback to the end."""
        if stage == "fit" and self._trained is not None:
            self._begin_second(trainer)
        if self._elastic is not None:
            self._elastic.prepare(trainer)
        if stage != "fit":
            return
        if trainer.is_global_zero:
            self._runs.put_back()
        if self.trial.number > 0 and trainer.num_sanity_val_steps == _SANITY_STEPS:
            trainer.num_sanity_val_steps = 0  # the study's first trial has run it
        if not trainer.enable_validation:
            raise DeadlineError(
                "DeadlineCallback reports after each validation, and this fit has none:"
                " give it a validation_step and a validation loader."
            )
        if self._elastic is None and trainer.world_size != 1:
            raise DeadlineError(
                f"The trainer has {trainer.world_size} devices where the trial has 1: pass"
                " **deadline.trainer_options() to the Trainer. Several devices per trial need an"
                " elastic worker."
            )
        requests = LoaderRequests(trainer, self.seed, self.trial.number)
        if self._elastic is not None:
            self._elastic.requests = requests
            self._folders.note(trainer.callbacks)  # type: ignore[attr-defined]
            finders.refuse_batch_size(trainer)
            refuse_own_fetching(pl_module)
            look_at_callbacks(trainer.callbacks, self.segment)  # type: ignore[attr-defined]
            if self.segment.resume is not None:
                finders.stop_searching(trainer)
            # Last, so that the other callbacks' state in a checkpoint is from that moment. Not by
            # deriving from Checkpoint, which forbids the user's `enable_checkpointing=False`.
            file = self.segment.folder / f"segment-{self.segment.fence:06d}-last.ckpt"
            callbacks = only_useful(trainer, last=self, file=file)
            trainer.callbacks = callbacks  # type: ignore[attr-defined]
            self._elastic.data.attach(trainer, self._elastic.attributes.before_request)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Connect the ranks."""
        if self._elastic is not None:
            self._elastic.connect(trainer)

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take SIGTERM over from Lightning."""
        if self._elastic is not None:
            self._elastic.controller.term.install()
            self._elastic.attributes.begin_check()

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record what it has changed in the module: a resumed fit has none."""
        if self._elastic is not None:
            self._elastic.attributes.end_check()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take SIGTERM over from Lightning, and report the horizon."""
        if self._elastic is not None:
            self._elastic.controller.term.install()
            if trainer.is_global_zero and not self.segment.checked:
                self._runs.note(trainer.loggers)
            self._elastic.begin_again(trainer)
            self._elastic.start(trainer)
            self._unhook = boundaries.after_hooks(
                trainer,
                self,
                start=self._elastic.started,
                batch=partial(self._batch_ended, trainer),
                validation=partial(self._validated, trainer),
                fetch=partial(self._fetching, trainer),
                epoch=partial(self._elastic.end_epoch, trainer),
            )

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Seed an epoch's start, and report the number of steps."""
        if self._elastic is not None:
            self._elastic.reseed(trainer.current_epoch, -1)
            if self._elastic.scaled is not None:
                self._elastic.scaled.begin_epoch(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed the step, whatever ran before it."""
        if self._elastic is not None:
            self._elastic.before_batch(trainer.fit_loop.batch_idx)
            self._elastic.reseed(trainer.current_epoch, batch_idx)
            if self._elastic.scaled is not None:
                self._elastic.scaled.begin_step(trainer.fit_loop.batch_idx)

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        """Weight slices of unequal length, so that the mean over ranks is the batch's mean."""
        if self._elastic is not None:
            weight = self._elastic.weight(trainer.fit_loop.batch_idx)
            if weight != 1.0:
                scale = partial(torch.mul, weight)
                loss.register_hook(scale)  # type: ignore[no-untyped-call]

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the mean gradient before it is clipped."""
        if self._elastic is not None and self._elastic.scaled is not None:
            self._elastic.scaled.scaling.after_backward(pl_module.parameters())

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Send a message: a long validation is not a hung one."""
        if self._elastic is not None and not trainer.sanity_checking:
            self._elastic.alive(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the time."""
        self._validating_since = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report, and end or prune; a worker's trial does so after the module's own hook."""
        if self._elastic is None and not trainer.sanity_checking and trainer.state.fn == "fit":
            self._report(trainer)
            self._end_or_prune(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the trainer."""
        self._trained = trainer
        if self._elastic is not None:
            self._elastic.end(trainer)
        self._unhook()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Wait for a checkpoint that is being written: it may have the best value."""
        if self._elastic is not None:
            self._elastic.controller.finish()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Step schedulers that watch a metric in a resumed epoch too."""
        if self._elastic is not None:
            boundaries.resumed_in_full(trainer)

    def _begin_second(self, trainer: pl.Trainer) -> None:
        """Refuse a second fit under a worker; under plain Optuna its steps may be reported."""
        advice = (
            "make a trainer and a callback for each fit, with a name such as"
            ' DeadlineCallback(..., fit="stage-2").'
        )
        if self._elastic is not None:
            raise DeadlineError(
                "This DeadlineCallback has watched a whole fit, and a trial that resumes could not"
                f" tell a second one from it: train once with the larger max_epochs, or {advice}"
            )
        if trainer is not self._trained:  # else its epochs follow
            _log.warning(
                "This DeadlineCallback has reported another fit, and each step is reported once:"
                " %s",
                advice,
            )

    def _look_at(self, trainer: pl.Trainer) -> None:
        """Refuse a trainer of other processes than the trial's before it waits for them."""
        if self in trainer.callbacks:  # type: ignore[attr-defined]
            refuse_strategy(trainer.strategy)
            refuse_other_slots(trainer, self.segment.rank, self.segment.world_size)
            if self.segment.checked or self.segment.resume is not None:
                config_is_saved(trainer.callbacks)  # type: ignore[attr-defined]
            if self.segment.checked:
                leave_nothing(trainer, self.segment.folder)
            elif not self._looked and trainer.loggers:
                self._looked = True
                resume = self.segment.resume
                former = {} if resume is None else peek(resume, trust=self._trust)
                runs = former.get(_STATE, {}).get("runs", [])
                self._runs.resume(trainer.loggers, runs, former.get("global_step", 0))

    def _fetching(self, trainer: pl.Trainer, part: int) -> None:
        """Seed the reading or moving of the next batch."""
        assert self._elastic is not None
        self._elastic.reseed(trainer.current_epoch, trainer.fit_loop.batch_idx + 1, part)

    def _batch_ended(self, trainer: pl.Trainer) -> None:
        """Follow directives at each optimizer step."""
        assert self._elastic is not None
        try:
            self._elastic.after_batch(trainer)
        except SegmentEnd:  # which comes before this step's metrics are logged
            trainer._logger_connector.update_train_step_metrics()
            raise

    def _validated(self, trainer: pl.Trainer) -> None:
        """Report, save the best, and follow directives."""
        assert self._elastic is not None
        self.segment.validated(time.monotonic() - self._validating_since)
        self._elastic.controller.leave_if_diverged()
        self._elastic.after_validation(trainer, self._report(trainer))

    def _report(self, trainer: pl.Trainer) -> float | None:
        """The reported value; None if this step was reported before."""
        value = monitored(trainer.callback_metrics, self.monitor)
        step = self._steps.reached(trainer)
        if step is None:
            return None
        if self._elastic is not None:
            self._elastic.name_regime(trainer)
        self.segment.report(self.trial, value, step)
        return value

    def _end_or_prune(self, trainer: pl.Trainer) -> None:
        from optuna_deadline._out_of_time import out_of_time

        if out_of_time(self.trial):
            trainer.should_stop = True  # not a pruning: the objective returns its last value
        elif self.trial.should_prune():
            raise optuna.TrialPruned(f"Trial was pruned at epoch {trainer.current_epoch}.")

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Close loggers normally when a segment ends: Lightning would mark the run as failed."""
        self._unhook()
        if isinstance(exception, SegmentEnd):
            for logger in trainer.loggers:
                logger.finalize("finished")
            trainer.loggers = []

    # ---- the state of this callback in a checkpoint

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the position in the data, the values so far, and unused gradients."""
        if self._elastic is not None:
            boundaries.count_skipped(checkpoint)
            runs = self._runs.ids(trainer.loggers)
            checkpoint[_STATE] = {**self._elastic.state(trainer), "runs": runs}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the position before any worker of the loader prefetches."""
        if self._elastic is not None:
            self._folders.restore(checkpoint)
        if self._elastic is not None and _STATE in checkpoint:
            self._elastic.load(checkpoint[_STATE], checkpoint["optimizer_states"])
