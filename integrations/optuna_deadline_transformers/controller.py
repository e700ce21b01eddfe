"""What a rank does after a step of ``Trainer``: agree, let the trainer save, publish, leave."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import Any

from optuna_deadline_torch.consensus import Consensus, ReplicatedState, StepDecision
from optuna_deadline_torch.decisions import leave_if_diverged
from optuna_deadline_torch.ranks import TermFlag
from transformers import TrainerControl, TrainerState, TrainingArguments

from optuna_deadline.checkpoints.folders import working_folder
from optuna_deadline.directives import Kind
from optuna_deadline.fits import FitSegment
from optuna_deadline_transformers.draws import SeededTraining
from optuna_deadline_transformers.others import Others
from optuna_deadline_transformers.room import DiskRoom

_log = logging.getLogger("optuna_deadline")


class TrainerController:
    """Follows directives in one rank of a segment, in step with its other ranks.

    Args:
        segment: The rank's segment.
        save_every: Seconds between safety checkpoints.
    """

    def __init__(self, segment: FitSegment, save_every: float) -> None:
        self.consensus = Consensus(segment.rank, segment.world_size)
        self._segment = segment
        self._term = TermFlag()
        self._room = DiskRoom(segment.folder)
        self._save_every = save_every
        self._stays = False
        self._decision: StepDecision | None = None  # whose checkpoint the trainer will write
        self._report: tuple[int, float | None] = (0, None)  # of that checkpoint
        self._output: Any = None  # the user's folder, while the trainer writes to another one

    def connect(self) -> None:
        """Reach the other ranks, and heed a signal to end."""
        self._term.install()
        self.consensus.connect()

    def begin(self, seeds: SeededTraining, others: Others) -> None:
        """Begin to train."""
        self._seeds, self._others = seeds, others
        self._saved_at = time.monotonic()

    @property
    def checkpoint_due(self) -> bool:
        """Whether it is time for a safety checkpoint."""
        return time.monotonic() - self._saved_at >= self._save_every

    def agree(
        self,
        args: TrainingArguments,
        control: TrainerControl,
        *,
        step: int,
        save: bool,
        value: float | None = None,
        model: Any = None,
        optimizer: Any = None,
        **also: Any,
    ) -> None:
        """Agree with the other ranks, and ask the trainer for a checkpoint if one is needed.

        Args:
            args: The training's.
            control: The training's.
            step: The number of the last report.
            save: Whether this rank wants a checkpoint.
            value: The value that was just reported.
            model: The model that is trained.
            optimizer: Its optimizer.
            also: What else the trainer passes.

        Raises:
            SegmentEnd: The trial leaves, and needs no checkpoint.
        """
        decision = self.consensus.agree(
            self._segment.newest(), terminated=self._term.raised, save=save
        )
        if self._seeds.lost_place:
            decision = self._staying(decision)
        if decision.directive.kind is Kind.STOP:
            self.consensus.barrier()
            self._segment.leave(decision.directive)
        if decision.goes_on:
            return
        if value is None:
            self.leave_if_diverged(model, optimizer)
        if not self._has_room(step, value, model):
            if decision.directive.leave and not control.should_training_stop:
                self._segment.leave(decision.directive)
            return
        self._decision, self._report = decision, (step, value)
        self._output, args.output_dir = args.output_dir, str(self._working_folder())
        control.should_save = True

    def forget(self, args: TrainingArguments) -> None:
        """Forget a checkpoint that the trainer has not written."""
        if self._decision is not None:
            self._decision, args.output_dir = None, self._output

    def written(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl
    ) -> None:
        """Publish the checkpoint that the trainer has written, and leave if it has to.

        Raises:
            SegmentEnd: The trial leaves.
        """
        if self._decision is None:
            return
        decision, self._decision = self._decision, None
        folder, args.output_dir = self._working_folder(), self._output
        others = self._others.state(float(state.epoch or 0.0))
        self.consensus.barrier()  # each rank has written its random numbers
        if control.should_epoch_stop and not control.should_training_stop:
            self._seeds.end_epoch(state)  # by another callback, after this one
        if self._seeds.lost_place:
            decision = self._staying(decision)
        if self._segment.rank == 0:
            written = folder / f"checkpoint-{state.global_step}"
            self._room.note_size(written)
            self._others.write(others, written)
            step, value = self._report
            with self._segment.save_dir(step=step, value=value) as published:
                for file in written.iterdir():
                    shutil.move(file, published / file.name)
            shutil.rmtree(folder, ignore_errors=True)
        self.consensus.barrier()
        self._saved_at = time.monotonic()
        if decision.directive.leave and not control.should_training_stop:
            self._segment.leave(decision.directive)

    def leave_if_diverged(self, model: Any = None, optimizer: Any = None, **also: Any) -> None:
        """Return to the last checkpoint, on one slot, if the ranks' models differ."""
        if self._segment.world_size == 1 or model is None:
            return
        trained = ReplicatedState(
            model.parameters(),
            [] if optimizer is None else [optimizer],
            "call the model that the trainer passes, in compute_loss too",
        )
        leave_if_diverged(self._segment, self.consensus, trained, self.consensus.barrier)

    def _staying(self, decision: StepDecision) -> StepDecision:
        """The decision for a trial that could not resume."""
        if not self._stays:
            self._stays = True
            self._segment.keep_slots()
            if self._segment.rank == 0:
                _log.warning("The trial keeps its slots to its end: %s.", self._seeds.lost_place)
        return decision.staying()

    def _has_room(self, step: int, value: float | None, model: Any) -> bool:
        """Whether the first rank's disk has room for a checkpoint; otherwise the worker says so.

        Every rank calls it. Training goes on, and a later checkpoint is tried again.
        """
        error = self.consensus.gather(self._room.error(model))[0]
        if error is None:
            return True

        def fail(_: Path) -> None:
            raise error

        self._segment.save(fail, step=step, value=value)
        self._saved_at = time.monotonic()
        return False

    def _working_folder(self) -> Path:
        """Where the trainer writes its checkpoint: one folder for all ranks of this host."""
        return working_folder(self._segment, "trainer")
