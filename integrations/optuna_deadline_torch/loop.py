"""A training loop that can stop and resume between any two optimizer steps.

The loop is the user's; its two ``for`` statements connect it to the slots. The body of a loop
belongs to its batch or epoch as a whole: directives are read between iterations. So it
does not matter whether a scheduler steps before or after the report.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, overload

import optuna
import torch
from torch import nn

from optuna_deadline._out_of_time import out_of_time
from optuna_deadline.errors import DeadlineError
from optuna_deadline.fits import begin_fit
from optuna_deadline_torch.epoch_data import EpochData
from optuna_deadline_torch.first_trial import check_first
from optuna_deadline_torch.loop_segment import LoopOptions, LoopSegment
from optuna_deadline_torch.measures import MetricWatcher
from optuna_deadline_torch.ranks import refuse_wrapped, slot_device
from optuna_deadline_torch.regimes import precision_of, regime_name
from optuna_deadline_torch.sampler import ElasticBatchSampler
from optuna_deadline_torch.scaling import Scaling, Schedules
from optuna_deadline_torch.seeding import Generators, reseed
from optuna_deadline_torch.sources import LoaderSources
from optuna_deadline_torch.states import TrainingState

Batch = TypeVar("Batch")
_BEFORE = -1  # the position before an epoch's first batch
_ROUNDING = 1e-9  # of an epoch


class ElasticLoop:
    """The loops of a training, over epochs and batches, under a deadline.

    Under ``study.optimize`` it reports and prunes, and ends when there is no time for another
    report. Under an elastic worker the trial also pauses, resumes and changes its number of slots
    between any two optimizer steps, without losing or repeating one: the batch size of the loader
    is that of the whole step, and each batch is distributed to the slots.

    In a segment that resumes, the objective runs from its beginning. :meth:`epochs` restores the
    states, and both loops continue at the checkpoint. So a sum over an epoch's batches covers only
    those of this segment, and a loader that is read without :meth:`batches` starts again: read
    several as ``loop.batches(a, b)``.

    Args:
        trial: The trial that the objective was called with.
        model: The unwrapped model; it is moved to :attr:`device`.
        optimizer: Its optimizer. Training can pause after each of its steps.
        epochs: Number of epochs.
        seed: Draws the order of samples and, under a worker, each step's random numbers.
        save_every: Seconds between safety checkpoints, under a worker. Each best value and each
            pause is saved anyway.
        mode: The direction, ``"min"`` or ``"max"``; needed only if the study does not state it. A
            value that contradicts the study is refused.
        ddp: Options of ``DistributedDataParallel``, used with several slots.
        equal_shards: Use only numbers of slots that divide the batch. Otherwise slices of unequal
            length are weighted.
        scaling: A rule by whose name the batch grows with the slots, ``"linear"``, ``"sqrt"`` or
            ``"adascale"``; None keeps batch and learning rate on any number of slots.
        reports_per_epoch: Reports per epoch, evenly spaced; see :attr:`report_due`. An epoch has
            as many steps.
        check: Whether the study's first trial is checked before its first step: a few steps
            undisturbed, paused and on two slots, with the same parameters. The result is
            printed and stored in the trial's attribute ``optuna_deadline:check``. If a second slot
            changes the training, is refused or crashes, the trial stays on one. See
            ``optuna-deadline check``.
        fit: A name, needed where the objective trains several models one after the other, such as
            the folds of a cross-validation. Each resumes from its own state, and the steps of its
            reports follow those of the fit before. Call :meth:`result` after each.
        **also: Further states to save, by name: schedulers, a ``GradScaler``, an average of the
            weights, anything with ``state_dict`` and ``load_state_dict``; random generators,
            lists, dicts, arrays, tensors, and objects whose attributes are plain data, which are
            filled in place, on several slots with those of the first one.

    Raises:
        DeadlineError: The model is sharded or wrapped already, or a state cannot be kept.

    Example:
        ```python
        loop = ElasticLoop(trial, model, optimizer, epochs=50, scheduler=scheduler)
        for epoch in loop.epochs():
            for x, y in loop.batches(loader):
                loss = cross_entropy(loop.model(x.to(loop.device)), y.to(loop.device))
                optimizer.zero_grad()
                loop.backward(loss)
                optimizer.step()
            scheduler.step()
            loop.report(evaluate(model))
        return loop.result()
        ```
    """

    def __init__(
        self,
        trial: Any,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        epochs: int,
        seed: int = 0,
        save_every: float = 60.0,
        mode: Literal["min", "max"] | None = None,
        ddp: Mapping[str, Any] | None = None,
        equal_shards: bool = False,
        scaling: Literal["linear", "sqrt", "adascale"] | None = None,
        reports_per_epoch: int = 1,
        check: bool = False,
        fit: str | None = None,
        **also: Any,
    ) -> None:
        refuse_wrapped(model)
        if reports_per_epoch < 1:
            raise DeadlineError(
                f"reports_per_epoch must be 1 or more, but got {reports_per_epoch}."
            )
        self.trial = trial
        self.segment = begin_fit(trial, fit)
        if check and not self.segment.record.first_step:  # the first fit
            check_first(trial, self.segment)
        self.device = slot_device(self.segment.elastic)  #: the device for batches
        self.epoch = 0  #: the current epoch, from 0
        self.batch = 0  #: the current batch, from 0 in each epoch
        self.steps = 0  #: optimizer steps so far, over all segments
        self.value: float | None = None  #: the last report, over all segments
        self._epochs = epochs
        self._per_epoch = reports_per_epoch
        self._shares = 0  # trained report shares of this epoch, the current batch included
        self._reported = -1  # the last step
        self._seed = seed
        self._own: Generators | None = None  # of the data and the model, which are seeded too
        self._start = 0  # the batch to resume with
        self._over = False
        self._scaled = any("GradScaler" in type(one).__name__ for one in also.values())
        self._given: Callable[[], Any] = lambda: None  # the batches that the user iterates over
        self._in_epoch = self._dealt = self._dealing = self._evaluating = False
        self._unsaved: float | None = None  # a value whose weights are not saved yet
        self._pending = 0  # batches that no optimizer step has used
        self._weight, self._weighed = 1.0, True
        self._precision: str | None = None  # of the epoch's first loss
        self._data: EpochData | None = None  # of the epoch
        self._states = TrainingState(model.to(self.device), {"optimizer": optimizer, **also})
        self._scaling = Scaling(scaling)
        self._scaling.watch(optimizer, *also.values())
        self._elastic: LoopSegment | None = None
        self._measures = MetricWatcher(
            lambda: self._evaluating or not self._dealing,
            lambda: self._elastic is not None and self._elastic.controller.should_log("mean"),
        )
        self._sources = LoaderSources(partial(ElasticBatchSampler, seed=seed), None)
        if self.segment.elastic:
            options = LoopOptions(seed, save_every, mode, ddp or {}, equal_shards)
            self._take_part(options)
        self._schedules = Schedules(() if scaling is None else also.values())
        optimizer.register_step_post_hook(self._stepped)

    def _take_part(self, options: LoopOptions) -> None:
        self._elastic = LoopSegment(
            self.trial,
            self.segment,
            self.device,
            self._states,
            self._scaling,
            options,
            self._position,
        )
        self._measures.watch()
        self._sources = self._elastic.sources
        if (position := self._elastic.resume()) is not None:
            self.epoch, self._start = position["position"]
            self.steps, self.value = position["steps"], position["value"]
            self._over = position["over"]
            self._reported = position["reported"]
        self._tell_horizon()

    @property
    def model(self) -> nn.Module:
        """The model to call in training."""
        return self._states.model if self._elastic is None else self._elastic.model

    # ---- the two loops

    def epochs(self) -> Iterator[int]:
        """The remaining epochs, numbered from 0."""
        if self._elastic is not None:
            self._elastic.begin(within=self._start > 0)
        self._schedules.start()
        while not self._over and (self._start or not self._trained):
            self._in_epoch, self._dealt = True, False
            self._reseed(_BEFORE)
            yield self.epoch
            self._in_epoch = False
            self.epoch, self._start = self.epoch + 1, 0
            self._end_epoch(ending=self._over or self._trained)

    @overload
    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]: ...

    @overload
    def batches(
        self, loader: Iterable[Any], *others: Iterable[Any]
    ) -> Iterator[tuple[Any, ...]]: ...

    def batches(self, loader: Iterable[Any], *others: Iterable[Any]) -> Iterator[Any]:
        """The remaining batches of the epoch, each distributed to the slots.

        Args:
            loader: A ``DataLoader`` with the global batch size, without a sampler for several
                processes. One that cannot be distributed (over an ``IterableDataset``, for
                example) is read on one slot only. After a pause it resumes from its ``state_dict``
                if it has one; otherwise it is read again from its beginning up to its position.
            *others: Loaders to read beside it, one batch of each per step, in a tuple. The epoch
                is as long as the first loader. A shorter one starts again with a new order, like
                ``itertools.cycle``; the rest of a longer one is skipped.

        Instead of ``zip(loop.batches(a), b)``, where ``b`` is not distributed and starts again in
        a resumed epoch, write ``loop.batches(a, b)``.
        """
        batches = self._batches([loader, *others])
        self._given = weakref.ref(batches)  # weak: a `break` has to end it
        return batches

    def _batches(self, loaders: Sequence[Iterable[Any]]) -> Generator[Any]:
        if not self._in_epoch or self._dealt or self._unsaved is not None:
            raise DeadlineError(
                "Ask for loop.batches(...) once in each epoch of loop.epochs(), before the report:"
                " one place in the data is all that a checkpoint keeps."
            )
        self._dealt = self._dealing = True
        if self._elastic is not None:
            self._measures.watch()
        try:
            yield from self._deal(loaders)
        finally:  # also after a `break`
            self._measures.end_batch()
            self._dealing = False

    def backward(self, loss: torch.Tensor) -> None:
        """``loss.backward()`` for a loss that is a mean over the batch.

        Slices of unequal length are weighted, so that the gradient is the mean over the whole
        batch on any number of slots. A loss scaled by a ``GradScaler`` may be passed as well.
        """
        self._weighed = True
        self._precision = self._precision or precision_of(loss)
        scaled = loss if self._weight == 1.0 else loss * self._weight
        scaled.backward()  # type: ignore[no-untyped-call]
        self._scaling.after_backward(self.model.parameters())

    def advance(self, scheduler: Any) -> None:
        """``scheduler.step()``, as often as a step or an epoch counts under ``scaling``.

        A scheduler that watches a metric is stepped once.
        """
        times = self._scaling.ticks if self._dealing else self._scaling.epochs()
        self._schedules.advance(scheduler, times)

    @property
    def report_due(self) -> bool:
        """Whether a share of the epoch ends with the current batch and is not reported yet.

        With ``reports_per_epoch=4``, check it after the optimizer's step, and report then::

            for x, y in loop.batches(loader):
                ...
                optimizer.step()
                if loop.report_due:
                    loop.report(evaluate(model))
        """
        self._evaluating = self._has_new_share and (not self._pending or self._scaled)
        return self._evaluating

    def report(self, value: float) -> None:
        """Report a value, which every slot computes from the whole validation set.

        Call it once per epoch after its batches, or among them when :attr:`report_due` is true.
        Under a worker, the weights are saved if the value is the best one so far.

        Raises:
            TrialPruned: Optuna's pruner ends the trial.
            DeadlineError: Gradients were accumulated that no optimizer step has used.
        """
        if not self._in_epoch or (self._dealing and not self._has_new_share):
            raise DeadlineError(
                "Call loop.report(value) in an epoch of loop.epochs(), after its batches, or in"
                " them where loop.report_due says so."
            )
        if self._pending and not self._scaled:
            raise DeadlineError(
                f"The last {self._pending} batches were used by no step of the optimizer that"
                " ElasticLoop is given: step at the last batch of an epoch too, and before a"
                " report, else a pause here would lose them."
            )
        if self._elastic is not None:
            self._elastic.controller.leave_if_diverged()
        self._evaluating = False
        self.value = self._unsaved = float(value)
        self._reported = self._step
        if self._precision is not None and self._data is not None:  # it may resume at its end
            loaders = self._data.samplers or self._data.loaders
            self.segment.regime(regime_name(loaders, precision=self._precision))
        self.segment.report(self.trial, self.value, self._reported)
        if self._elastic is not None:
            self._elastic.controller.reported = self._reported
        elif out_of_time(self.trial):
            self._over = True  # not a pruning: the objective returns its last value
        elif self.trial.should_prune():
            raise optuna.TrialPruned(f"Trial was pruned at epoch {self.epoch}.")

    def result(self) -> float:
        """The last report; return it from the objective.

        After a ``break`` out of :meth:`epochs`, it also saves the weights of a best last report.

        Raises:
            DeadlineError: Nothing was reported.
        """
        if self.value is None:
            raise DeadlineError(
                "The objective has not reported: call loop.report(value) in each epoch."
            )
        if self._unsaved is not None:
            self._over = True
            self._end_epoch(ending=True)
        elif self._elastic is not None:
            self._elastic.controller.saver.wait()
        if self._elastic is not None and self.segment.record.name:
            self._over = True  # the next fit starts in a segment in which this one has ended
            self._elastic.controller.end_fit(self.steps)
        return self.value

    # ---- internal

    def _tell_horizon(self) -> None:
        passes = self._scaling.passes(self._epochs, self.epoch)
        self.segment.horizon(passes * self._per_epoch - 1)

    @property
    def _has_new_share(self) -> bool:
        within = self._dealing and self._per_epoch > 1 and self._shares > 0
        return within and self._step > self._reported

    @property
    def _step(self) -> int:
        """The current step: the finished shares of all epochs, from 0."""
        shares = self._shares if self._dealing else self._per_epoch
        return self.epoch * self._per_epoch + shares - 1

    @property
    def _trained(self) -> bool:
        return self._scaling.complete(self._epochs, self.epoch)

    def _deal(self, loaders: Sequence[Iterable[Any]]) -> Iterator[Any]:
        data = self._data = EpochData.of(loaders, self._sources, self._scaling.rule)
        self._own, self._precision = data.generators(self._states.model), None
        if self._elastic is not None:
            self._elastic.begin_batches(data, within=self._start > 0)
        data.seek(self.epoch, self._start)
        if self._elastic is not None:
            self._elastic.check_order(data, self.epoch, self._start)
        size = data.size(self.epoch, self._start, needed=self._per_epoch > 1)
        if not (done := self._start):
            self._scaling.begin_pass(size)
        batches = data.read(done, self._reseed)
        while not (done and self._trained):
            self._reseed(done)  # also for reads of samples, and for code after the last step
            try:
                batch = next(batches)
            except StopIteration:
                return
            if self._elastic is not None:
                precision = "float16" if self._scaled else ""
                self._elastic.log_differences(self._given(), self.epoch, done, precision)
            self.batch = done
            self._weight, self._weighed = data.weight(done), False
            self._pending += 1
            growth = data.growth(done)
            self._scaling.begin(growth, even=data.even(done))
            self._shares = int(min((done + growth) / size, 1.0) * self._per_epoch + _ROUNDING)
            self._evaluating = False
            self._measures.begin_batch(weight=self._weight)
            yield batch
            self._measures.end_batch()
            self._start = done = done + growth
            self._after_batch(size)
            if self._over:
                return

    def _reseed(self, place: int) -> None:
        # under plain Optuna the process may hold more than this trial
        if self._elastic is not None:
            reseed(self._seed, self.epoch, place, self.segment.rank, own=self._own)

    def _stepped(self, *_: Any) -> None:
        self.steps += 1
        self._pending = 0

    def _after_batch(self, size: float) -> None:
        if self._pending and self._unsaved is None:  # no step here: nothing is finished
            if self._scaling.rule is not None:
                raise DeadlineError(
                    "With scaling=... step the optimizer after each batch: a larger batch takes"
                    " the place of gradients of several."
                )
            return
        if not self._weighed:
            raise DeadlineError(
                "Call loop.backward(loss) in place of loss.backward(): it weighs the slices of a"
                " batch that the slots do not share evenly."
            )
        self._schedules.look()
        value, self._unsaved = self._unsaved, None
        if self._elastic is not None:
            progress = (self.epoch + min(self._start / size, 1.0)) * self._per_epoch
            # The end of the epoch is near, where the same step may be saved with its value.
            self._elastic.stepped(progress, self.steps, value, saves=self._start < size)

    def _end_epoch(self, *, ending: bool) -> None:
        value, self._unsaved = self._unsaved, None
        self._schedules.look()
        if self._elastic is not None:
            if self._scaling.rule is not None:
                self._tell_horizon()
            progress = float(self.epoch * self._per_epoch)
            self._elastic.stepped(progress, self.steps, value, saves=True, ending=ending)

    def _position(self) -> dict[str, Any]:
        return {
            "position": [self.epoch, self._start],
            "steps": self.steps,
            "value": self.value,
            "over": self._over,
        }
