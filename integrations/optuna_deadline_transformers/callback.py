"""The callback by which a training of Hugging Face's ``Trainer`` follows its deadline."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import optuna
import torch
from optuna_deadline_torch.differences import warn_of_differences
from optuna_deadline_torch.direction import direction_of, known_direction, warn_of_minimized_score
from optuna_deadline_torch.first_trial import check_first
from optuna_deadline_torch.loaders import can_be_dealt
from optuna_deadline_torch.ranks import serve_store
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy
from transformers.utils.logging import disable_progress_bar

from optuna_deadline._out_of_time import out_of_time
from optuna_deadline.callers import running
from optuna_deadline.errors import DeadlineError
from optuna_deadline.fits import begin_fit
from optuna_deadline.module_values import refuse_unsaved
from optuna_deadline.values.scores import BestValue
from optuna_deadline_transformers.controller import TrainerController
from optuna_deadline_transformers.draws import SeededTraining
from optuna_deadline_transformers.evaluation import evaluate_alone, seed_evaluations
from optuna_deadline_transformers.losses import divides_by_itself, share_losses
from optuna_deadline_transformers.others import Others
from optuna_deadline_transformers.reports import ReportAxis
from optuna_deadline_transformers.runs import continue_runs, note_runs
from optuna_deadline_transformers.slots import (
    StepBatch,
    note_batch,
    one_slot_only,
    refuse,
    regime_of,
)
from optuna_deadline_transformers.step_shares import share_steps

_log = logging.getLogger("optuna_deadline")
_Arguments = TypeVar("_Arguments", bound=TrainingArguments)


class DeadlineCallback(TrainerCallback):
    """Reports to Optuna after each evaluation, and follows the study's deadline and plan.

    Under ``study.optimize`` it prunes, and ends the training when there is no time for another
    report. Under an elastic worker the trial also pauses, resumes and changes its number of slots
    after any optimizer step, from the checkpoints of ``Trainer`` itself: weights, optimizer,
    schedule, position in the data, random numbers and the state of other callbacks. The batch of
    a step stays the same on any number of slots: see :meth:`adapt`.

    Reports are numbered by evaluation, from 1: by epoch with ``eval_strategy="epoch"``.

    Args:
        trial: The trial that the objective was called with.
        monitor: The metric to report, such as ``"eval_accuracy"``; ``"accuracy"`` means the same.
        mode: The direction, ``"min"`` or ``"max"``; needed only if the study does not state it. A
            value that contradicts the study is refused.
        save_every: Seconds between safety checkpoints, under a worker. Each best value and each
            pause is saved anyway.
        check: Whether the study's first trial is checked before its first step, as by
            ``optuna-deadline check``: the result is printed and stored in the trial's attribute
            ``optuna_deadline:check``, and a trial that a second slot changes stays on one.
        fit: A name, needed where the objective trains several models one after the other, such as
            ``"fold-1"``. A training that has ended then loads its last model and trains no step.

    Raises:
        DeadlineError: A second training has no name.

    Example:
        ```python
        deadline = DeadlineCallback(trial, "eval_accuracy")
        args = TrainingArguments(num_train_epochs=6, eval_strategy="epoch")
        trainer = Trainer(
            model_init=model_init, args=deadline.adapt(args), callbacks=[deadline], ...
        )
        trainer.train(resume_from_checkpoint=deadline.checkpoint)
        return deadline.value
        ```
    """

    def __init__(
        self,
        trial: Any,
        monitor: str,
        *,
        mode: Literal["min", "max"] | None = None,
        save_every: float = 60.0,
        check: bool = False,
        fit: str | None = None,
    ) -> None:
        self.trial = trial
        self.monitor = monitor if monitor.startswith("eval_") else f"eval_{monitor}"
        self.segment = begin_fit(trial, fit, first=1)
        if check and not self.segment.record.first_step:  # the first fit
            check_first(trial, self.segment)
        self._resumed: Path | None = None  # the folder that `train` resumes from
        self._value: float | None = None
        self._reported = 0  # the number of the last report
        self._missed: list[str] = []  # metrics of an evaluation that had none to report
        self._axis: ReportAxis | None = None  # while it trains
        self._over = False  # whether a training has ended
        self._adapted = False
        self._batch = StepBatch(1, 1)
        self._elastic = self.segment.elastic
        if trial.number == 0 and self.segment.rank == 0 and self.segment.resume is None:
            warn_of_minimized_score(monitor, known_direction(trial, self.segment, mode))
        if not self._elastic:
            known_direction(trial, self.segment, mode)  # raises for a mode that contradicts it
            return
        serve_store()
        if self.segment.world_size > 1 and not torch.cuda.is_available():
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # else it sees one process
        self._best = BestValue(direction_of(trial, self.segment, mode))
        self._controller = TrainerController(self.segment, save_every)

    # ---- for the objective

    @property
    def value(self) -> float:
        """The last reported value, also of an earlier segment; return it from the objective.

        Raises:
            DeadlineError: Nothing was reported.
        """
        if self._value is None:
            raise DeadlineError(
                "Nothing was reported: pass callbacks=[deadline] to the Trainer, and train before "
                "you ask for the value."
            )
        return self._value

    @property
    def checkpoint(self) -> str | None:
        """The folder that ``train`` resumes from; None at the start of the trial."""
        if self._resumed is None and self.segment.resume is not None:
            self._resumed = self.segment.resume_dir()
            assert self._resumed is not None
            note_batch(self._resumed, self._batch.on(self.segment.world_size))
        return None if self._resumed is None else str(self._resumed)

    def adapt(self, args: _Arguments) -> _Arguments:
        """Fit training arguments to the trial's slots, in place; plain Optuna changes nothing.

        ``per_device_train_batch_size * gradient_accumulation_steps`` is the batch of a step over
        all slots: with more slots each accumulates less, and then takes a part of the batch. Only
        numbers of slots that divide it are used, and ``average_tokens_across_devices`` is on, so
        that the loss of a step is that of one slot. Checkpoints are the callback's: the trainer's
        own ``save_strategy`` is switched off, so that ``load_best_model_at_end`` loads nothing.

        Args:
            args: The arguments, of ``TrainingArguments`` or a class derived from it.

        Raises:
            DeadlineError: The model is sharded (FSDP, DeepSpeed), the trainer has another number
                of processes than the trial has slots, or the batch is found by trying.
        """
        self._adapted = True
        if not self._elastic:
            return args
        refuse(args)
        slots = self.segment.world_size
        whole = StepBatch(args.per_device_train_batch_size, args.gradient_accumulation_steps)
        if args.world_size != slots:
            raise DeadlineError(
                f"The trainer has {args.world_size} processes where the trial has {slots} slots: "
                "make TrainingArguments in the objective, and leave local_rank to the worker."
            )
        self.segment.even(whole.samples)
        if (why := one_slot_only(args)) is not None:
            self.segment.limit_slots(1, f"{why}; the trial stays on one slot")
        own = whole.on(slots)
        if own is None or (why is not None and slots > 1):
            self.segment.leave()  # and resume on a number that is possible
        self._batch = whole
        args.per_device_train_batch_size, args.gradient_accumulation_steps = own
        if args.load_best_model_at_end:
            _log.info(
                "Under a worker the best model is the trial's checkpoint, and the trainer has the "
                "last one at its end."
            )
        if self.segment.checked:
            args.report_to, args.output_dir = [], str(self.segment.folder / "out")
        elif args.report_to:
            continue_runs(self.trial, str(args.output_dir))
        args.save_strategy, args.save_only_model = SaveStrategy.NO, False
        args.ignore_data_skip, args.average_tokens_across_devices = False, True
        args.restore_callback_states_from_checkpoint = True
        if self.segment.ended:
            args.num_train_epochs, args.max_steps = 0, -1
        disable_progress_bar()  # type: ignore[no-untyped-call]  # of each file of a checkpoint
        return args

    # ---- the trainer's hooks, in the order of a training

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Begin to train: say how far this goes, and what was reported before.

        Raises:
            DeadlineError: A line of the objective is missing, or it trains twice.
        """
        if self._over and self._elastic:
            raise _second_training()
        loader = also["train_dataloader"]
        self._axis = axis = ReportAxis(args, state, stream=not can_be_dealt(loader))
        self._begun = False
        if not self._elastic:
            return
        if not self._adapted:
            raise DeadlineError(
                "Pass args=deadline.adapt(TrainingArguments(...)) to the Trainer: under a worker "
                "the batch is divided among the trial's slots."
            )
        if self.segment.resume is not None and self._resumed is None:
            raise DeadlineError(
                "This trial was paused: call trainer.train(resume_from_checkpoint="
                "deadline.checkpoint), which is None where a trial starts."
            )
        for entry in state.log_history:
            if self.monitor in entry:
                self._value = float(entry[self.monitor])
                self._best.improved(self._value)
        if self.segment.ended:
            return
        if self.segment.record.name and not can_be_dealt(loader):
            raise DeadlineError(
                "One of several trainings needs data with a length: Trainer could not load the "
                "last model of another one without a step."
            )
        note_runs(self.trial)
        self._reported = axis.passed(state)
        model, optimizer = also["model"], also["optimizer"]
        refuse_unsaved({"model": model, "optimizer": optimizer}, "make them a part of the model")
        trainer = running(Trainer)
        assert trainer is not None
        self._others = Others(
            self, trainer, self._resumed, model, optimizer, loader, self._controller.consensus
        )
        self._controller.connect()
        self._share(trainer, loader, model)
        own = self._others.generators
        self._seeds = SeededTraining(args.seed, self.segment.rank, loader, own)
        seed_evaluations(trainer, partial(self._seeds.begin_evaluation, state))
        self.segment.horizon(axis.last)
        self.segment.progress(axis.position(state))
        self._controller.begin(self._seeds, self._others)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Note the epoch."""
        self._begun = True
        if self._axis is not None and self._elastic:
            self._others.begin_epoch()
            self._seeds.begin_epoch(state)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Seed the step, and forget a checkpoint that the trainer has not written."""
        self._expect_report()
        if self._axis is None or not self._elastic:
            return
        self._others.begin_step()
        self._seeds.begin_step(state)
        self._controller.forget(args)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Follow directives after an optimizer step, unless an evaluation follows it."""
        if self._axis is None or not self._elastic:
            return
        self.segment.progress(self._axis.position(state))
        if not control.should_evaluate and not self._axis.ends_epoch(state):
            self._agree(args, control, save=self._controller.checkpoint_due, **also)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Follow directives at the end of an epoch that is not evaluated."""
        if self._axis is None or not self._elastic:
            return
        if not control.should_training_stop:
            self._seeds.end_epoch(state)
        if not control.should_evaluate and self._axis.ends_epoch(state):
            self._agree(args, control, save=False, **also)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Send a message: a long evaluation is not a hung one."""
        if self._axis is not None and self._elastic:
            self.segment.progress(self._axis.position(state))

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Report, save the best, and follow directives."""
        if self._axis is None or not self._begun:  # the objective's own, or one before training
            return
        metrics: dict[str, float] = also.pop("metrics")
        # Each data set of several is evaluated by itself, with its name in the metrics.
        took = [value for name, value in metrics.items() if name.endswith("_runtime")]
        self.segment.validated(sum(took[-1:]))
        number = self._axis.number(state)
        if number <= self._reported:  # before the first step, or again
            if self._over:
                raise _second_training()
            return
        if self.monitor not in metrics:
            self._missed = sorted(metrics)
            return
        self._missed = []
        self._reported = number
        self._value = value = float(metrics[self.monitor])
        if self._elastic:
            self.segment.regime(regime_of(args, self._batch))
            self._controller.leave_if_diverged(**also)
        self.segment.report(self.trial, value, number)
        if self._elastic:
            self._agree(args, control, save=self._best.improved(value), value=value, **also)
        elif out_of_time(self.trial):
            control.should_training_stop = True  # not a pruning: it returns its last value
        elif self.trial.should_prune():
            raise optuna.TrialPruned(f"Trial was pruned at evaluation {number}.")

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Publish the checkpoint that this callback has asked for, and leave if it has to."""
        if self._elastic:
            self._controller.written(args, state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **also: Any
    ) -> None:
        """Save the last state of one of several trainings; evaluations are the objective's now."""
        self._expect_report()
        self._axis, self._over = None, True
        if self._elastic:
            self.segment.end(partial(self._save_last, state))

    # ---- internal

    def _agree(self, *args: Any, **kwargs: Any) -> None:
        self._controller.agree(*args, step=self._reported, **kwargs)

    def _save_last(self, state: TrainerState) -> None:
        """Save the model, and what was reported: an ended training needs no more."""
        trainer = running(Trainer)
        assert trainer is not None
        with self.segment.save_dir(step=self._reported) as folder:
            if self.segment.rank == 0:
                trainer.save_model(str(folder), _internal_call=True)  # not to the hub
                state.save_to_json(str(folder / TRAINER_STATE_NAME))
        self._controller.consensus.barrier()

    def _share(self, trainer: Trainer, loader: Any, model: Any) -> None:
        """Share the steps with other slots, and their losses."""
        slots = self.segment.world_size
        shares, why = share_steps(loader, self._batch, slots, self.segment.rank)
        if (why := why or divides_by_itself(trainer)) is not None:
            self.segment.limit_slots(1, f"{why}; the trial stays on one slot")
        if slots == 1:
            return
        if why is not None:
            self.segment.leave()
        groups = self._batch.groups(slots)
        share_losses(trainer, model, shares.at_once if shares else lambda step: groups)
        evaluate_alone(trainer)
        if self._others.tells("slots"):
            warn_of_differences(slots, model)

    def _expect_report(self) -> None:
        """Refuse an evaluation without the metric; of several data sets one has to have it."""
        if self._missed:
            raise DeadlineError(
                f"The evaluation has no metric {self.monitor!r}: it has {', '.join(self._missed)}."
            )


def _second_training() -> DeadlineError:
    return DeadlineError(
        "This DeadlineCallback has reported another training, and each step is reported once: "
        'make one for each training, with a name such as DeadlineCallback(..., fit="fold-1").'
    )
