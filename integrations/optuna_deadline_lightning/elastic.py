"""One segment of a trial inside one ``fit``: its steps, its state, its tensors on the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import DoublePrecision
from optuna_deadline_torch.consensus import ReplicatedState, StepDecision
from optuna_deadline_torch.decisions import SegmentController
from optuna_deadline_torch.differences import warn_of_differences
from optuna_deadline_torch.direction import Direction
from optuna_deadline_torch.measures import MetricWatcher
from optuna_deadline_torch.packing import plain_numbers
from optuna_deadline_torch.regimes import regime_name
from optuna_deadline_torch.sample_order import fingerprints, refuse_another_order, refuse_undealt
from optuna_deadline_torch.sampler import ElasticBatchSampler, one_weight
from optuna_deadline_torch.scaling import Scaling
from optuna_deadline_torch.seeding import READING, reseed
from optuna_deadline_torch.warm_memory import TrainingObjects

from optuna_deadline.directives import Kind
from optuna_deadline.fits import FitSegment
from optuna_deadline.module_values import warn_of_structure
from optuna_deadline.optimizer_state import restore_kinds
from optuna_deadline_lightning import boundaries, finders, mid_epoch, results
from optuna_deadline_lightning.checkpoint_io import check_loadable, kinds
from optuna_deadline_lightning.evaluation import evaluate_alone, evaluating
from optuna_deadline_lightning.loaders import LoaderRequests, TrainingData
from optuna_deadline_lightning.plain_state import PlainState
from optuna_deadline_lightning.reporting import ReportSteps, numbers
from optuna_deadline_lightning.scaling import ScaledFit

_AT_END = -2  # of an epoch, in place of a batch


def holdings(trainer: pl.Trainer) -> TrainingObjects:
    """The module, its optimizers, the gradient scaler, all callbacks, and the metrics so far.

    Each of them, and the data module, may have ``on_keep_warm`` and ``on_wake``.
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
    return TrainingObjects([one for one in objects if one is not None], beyond=(pl.Trainer,))


class ElasticFit:
    """Follows directives at positions from which Lightning resumes exactly.

    Args:
        segment: The rank's segment.
        direction: Which direction is better.
        seed: Determines the order of samples.
        save_every: Seconds between safety checkpoints.
        even: Whether the number of slots must divide the batch.
        scaling: The name of a rule by which the batch grows with the slots, if it does.
    """

    def __init__(
        self,
        segment: FitSegment,
        *,
        direction: Direction,
        seed: int,
        save_every: float,
        even: bool = False,
        scaling: str | None = None,
        trust: bool = False,
    ) -> None:
        self.segment = segment
        self._trusted = trust
        self._loadable: set[type] = set()  # kinds of values that a checkpoint has had
        self.scaled = ScaledFit(Scaling(scaling), segment.world_size) if scaling else None
        self.steps = ReportSteps(self.scaled)
        self.controller = SegmentController(
            segment,
            direction=direction,
            seed=seed,
            save_every=save_every,
            take_state=self._take_state,
            trained=self._trained_alike,
            training_objects=self._training_objects,
            grows=scaling is not None,
            even=even,
        )
        self._seed = seed
        self.data = TrainingData(
            self.controller.deal,
            self._adopt_samplers,
            lambda: self._position,
            lambda epoch, batch: self.reseed(epoch, batch, READING),
        )
        self.requests: LoaderRequests  #: of loaders, when there is a trainer
        self.attributes: PlainState  #: of the training, when there is a trainer
        self.trained: mid_epoch.Trained | None = None  #: as in the checkpoint
        self._trainer: pl.Trainer | None = None
        self._samplers: Sequence[ElasticBatchSampler] = ()
        self._position = (0, 0)
        self._base_batch = 0  # of the position, if steps are longer than a batch
        self._order: dict[str, Any] | None = None  # fingerprints before the checkpoint
        self._optimizers: Sequence[Any] = ()  # their states in the checkpoint
        self._metrics: dict[str, torch.Tensor] = {}
        self._results: dict[str, Any] = {}
        self._gradients: dict[str, torch.Tensor] = {}
        self._rates: dict[str, float] = {}
        self._over = False  # whether this fit has ended, and another one follows
        self._stepped = -1  # the global step at the last check
        self._measures: MetricWatcher | None = None

    # ---- the data

    def reseed(self, epoch: int, batch: int, *part: int) -> None:
        """Seed a position in training, whatever ran before it; between epochs all ranks alike."""
        place = self._seed, epoch, batch, self.segment.rank if batch >= 0 else 0
        reseed(*place, *part, own=self.data.generators)

    def weight(self, batch: int) -> float:
        """The factor for the loss of this rank's slice of a batch.

        Raises:
            DeadlineError: Slices of the batches differ in their weights.
        """
        if self.segment.world_size == 1:
            return 1.0
        if self.scaled is not None:
            batch = self.scaled.batch(batch)
        return one_weight(self._samplers, batch)

    def _adopt_samplers(self, samplers: Sequence[ElasticBatchSampler]) -> None:
        self._samplers = samplers
        if self.scaled is not None:
            self.scaled.adopt(samplers, steps=self._position[1], batch=self._base_batch)
        self._seek()

    def _seek(self) -> None:
        epoch, batch = self._position
        for sampler in self._samplers:
            sampler.seek(epoch, batch if self.scaled is None else self._base_batch)

    # ---- from the first step to the last

    def prepare(self, trainer: pl.Trainer) -> None:
        """Start watching the module, before a checkpoint is read."""
        self.attributes = PlainState(trainer, self.controller.should_log)
        if self.segment.resume is not None:
            if mid_epoch.starts_by_itself(trainer):
                self.trained = mid_epoch.Trained(trainer)
            note = None if self.trained is None else self.trained.note_weights
            self.attributes.watch_restoring(note)
        self._measures = MetricWatcher(
            partial(evaluating, trainer), partial(self.controller.should_log, "mean")
        )
        self._measures.watch()
        evaluate_alone(trainer)
        if isinstance(trainer.precision_plugin, DoublePrecision):
            # Lightning reads a checkpoint into the module before it makes that a double one.
            trainer.precision_plugin.convert_module(trainer.lightning_module)

    def connect(self, trainer: pl.Trainer) -> None:
        """Connect the ranks; a fit that has nothing left to do still has its metrics."""
        self._trainer = trainer
        self.controller.consensus.connect()
        if self.scaled is not None:
            self.scaled.prepare(trainer)
        if self.segment.resume is not None:
            finders.set_rates(trainer.lightning_module, self._rates)
        if self._over:
            trainer.should_stop = True
            trainer.num_sanity_val_steps = 0  # it would delete the metrics again
        trainer.callback_metrics.update(self._metrics)

    def begin_again(self, trainer: pl.Trainer) -> None:
        """Call the user's hooks of an epoch's start in an epoch that is resumed."""
        epoch, batch = self._position
        if self.segment.resume is not None and batch:
            mid_epoch.call_epoch_start(
                trainer, trainer.lightning_module, lambda: self.reseed(epoch, -1)
            )

    def start(self, trainer: pl.Trainer) -> None:
        """Begin to train: say how far this can go."""
        self._stepped = trainer.global_step
        mid_epoch.watch(trainer)
        mid_epoch.put_back(trainer, self._gradients)
        results.restore(trainer, self._results)
        self.requests.resume()
        self._gradients, self._results = {}, {}
        self.controller.start()
        if self.scaled is not None:
            self.scaled.start(trainer, self.controller.consensus)
        if self.segment.world_size > 1 and self.controller.should_log("slots"):
            module, precision = trainer.lightning_module, str(trainer.precision)
            warn_of_differences(self.segment.world_size, module, precision)
        self._say_horizon(trainer)

    def started(self) -> None:
        """Put back what the hooks of a fit's start have changed, and compare the order."""
        assert self._trainer is not None
        if self.trained is not None:
            self.trained.put_back(self._optimizers)
        else:
            for optimizer, saved in zip(self._trainer.optimizers, self._optimizers, strict=False):
                restore_kinds(optimizer, saved)
        self._optimizers = ()
        if self.segment.resume is not None:
            mid_epoch.begin_again(self._trainer, self._trainer.lightning_module)
            boundaries.finish_batch(self._trainer)
        if self.attributes.begin():  # before the order is drawn, which may depend on some
            self._seek()
            iter(self._trainer.fit_loop._data_fetcher)  # type: ignore[arg-type]
        epoch, batch = self._base_position(*self._position)
        refuse_another_order(
            self._samplers, epoch, batch, consensus=self.controller.consensus, saved=self._order
        )

    def before_batch(self, batch: int) -> None:
        """Look where a batch comes from; a slot without a sample of it measures nothing."""
        refuse_undealt(self._samplers)
        assert self._measures is not None
        self._measures.begin_batch(weight=self.weight(batch))

    def after_batch(self, trainer: pl.Trainer) -> None:
        """Look for a directive where the optimizer has just stepped, and obey."""
        assert self._measures is not None
        self._measures.end_batch()
        if self.scaled is not None:
            self.scaled.end_step(trainer)
        self.segment.progress(self.steps.progress(trainer))
        if not self._samplers:  # data that is not distributed is read up to the position
            self._position = boundaries.position(trainer)
        if trainer.global_step != self._stepped:  # otherwise gradients are being accumulated
            self._stepped = trainer.global_step
            verdict = self.controller.agree(save=self.controller.checkpoint_due)
            if verdict.goes_on:
                self.controller.saver.check()
            elif verdict.directive.kind is Kind.STOP or boundaries.resumes_exactly(trainer):
                self.controller.apply(self._possible(verdict), trainer.global_step)

    def end(self, trainer: pl.Trainer) -> None:
        """Let the next saved state be this fit's last, if another one may follow."""
        self._over = True
        self.controller.end_fit(trainer.global_step)

    def end_epoch(self, trainer: pl.Trainer) -> None:
        """Combine the epoch's means and sums over all slots, and seed the hooks that follow.

        A trial that pauses after a validation comes back here.
        """
        self.reseed(trainer.current_epoch, _AT_END)
        results.combine(trainer, self.controller.consensus)

    def alive(self, trainer: pl.Trainer) -> None:
        """Training continues where it was."""
        self.segment.progress(self.steps.progress(trainer))

    def after_validation(self, trainer: pl.Trainer, value: float | None) -> None:
        """Save the best: its checkpoint has the very weights that were evaluated.

        Args:
            trainer: The trainer.
            value: The report; None if this validation's step was reported before.
        """
        self.controller.reported = self.steps.last
        self._position = boundaries.position(trainer)
        self.segment.progress(self.steps.progress(trainer))
        if self.scaled is not None:
            self._say_horizon(trainer)
        better = value is not None and self.controller.best.improved(value)
        verdict = self.controller.agree(save=better or self.controller.checkpoint_due)
        ending = boundaries.ends_by_itself(trainer)
        self.controller.apply(
            self._possible(verdict), trainer.global_step, value=value, ending=ending
        )

    def _possible(self, verdict: StepDecision) -> StepDecision:
        """The decision, without an end from which the trial could not resume."""
        changed = self.attributes.changed_structure()
        if not changed:
            return verdict
        if self.controller.should_log("structure"):
            warn_of_structure(changed, "in __init__ and configure_optimizers")
            self.segment.keep_slots()
        return verdict.staying()

    # ---- the state in a checkpoint, in plain numbers and tensors

    def state(self, trainer: pl.Trainer) -> dict[str, Any]:
        """The position in the data, the values and means so far, and unused gradients."""
        epoch, step = boundaries.position(trainer)
        grown = {} if self.scaled is None else {"scaling": self.scaled.state(step)}
        return {
            "position": [epoch, step],
            "order": fingerprints(
                self._samplers,
                *self._base_position(epoch, step),
                self.segment.world_size,
                lasting=not trainer.reload_dataloaders_every_n_epochs,  # type: ignore[attr-defined]
            ),
            "best": self.controller.best.value,
            "reported": self.controller.reported,
            "metrics": numbers(trainer.callback_metrics),
            "results": results.state(trainer, self.controller.consensus),
            "attributes": self.attributes.state(self.controller.consensus),
            "gradients": mid_epoch.waiting(trainer),
            "reloads": self.requests.state(),
            "rates": finders.rates(trainer, trainer.lightning_module),
            "over": self._over,
            "told": sorted(self.controller.logged_topics),
            **grown,
        }

    def load(self, state: dict[str, Any], optimizers: Sequence[Any]) -> None:
        """Restore :meth:`state`.

        Args:
            state: The state.
            optimizers: The states of the optimizers in the same checkpoint.
        """
        self._optimizers = optimizers
        epoch, batch = state["position"]
        self._position = epoch, batch
        self.controller.best.value = state["best"]
        self.controller.reported = self.steps.last = state["reported"]
        self.controller.logged_topics.update(state["told"])
        self._metrics = state["metrics"]
        self._over = state["over"]
        self._order = state["order"]
        self.attributes.load(state["attributes"])
        self._results = state["results"]
        self._gradients = state["gradients"]
        self.requests.load(state["reloads"])
        self._rates = state["rates"]
        if self.scaled is not None:
            self._base_batch = self.scaled.load(state.get("scaling"))
        else:
            Scaling(None).load(state.get("scaling"))
        self._adopt_samplers(self._samplers)

    def name_regime(self, trainer: pl.Trainer) -> None:
        """Name what decides how long a step takes, before the report of this validation."""
        loaders: Sequence[Any] = self._samplers or [trainer.train_dataloader]
        self.segment.regime(
            regime_name(loaders, trainer.accumulate_grad_batches, str(trainer.precision))
        )

    # ---- internal

    def _base_position(self, epoch: int, step: int) -> tuple[int, int]:
        """A position, counted in batches of the whole training."""
        if self.scaled is None or not self._samplers or not step:
            return epoch, step
        return epoch, self.scaled.batch(step)

    def _say_horizon(self, trainer: pl.Trainer) -> None:
        if (last := self.steps.horizon(trainer)) is not None:
            self.segment.horizon(last)

    def _training_objects(self) -> TrainingObjects:
        assert self._trainer is not None
        return holdings(self._trainer)

    def _trained_alike(self) -> ReplicatedState:
        assert self._trainer is not None
        return ReplicatedState(
            self._trainer.lightning_module.parameters(),
            self._trainer.optimizers,
            "call `self.manual_backward(loss)` in place of `loss.backward()`, and train only in"
            " training_step",
            [config.scheduler for config in self._trainer.lr_scheduler_configs],
        )

    def _take_state(self) -> dict[str, Any]:
        assert self._trainer is not None
        # The content of `save_checkpoint` without its write, for which training would wait.
        state = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        taken: dict[str, Any] = plain_numbers(state)
        if not self._trusted and not (found := kinds(taken)) <= self._loadable:
            check_loadable(taken)
            self._loadable |= found
        return taken
