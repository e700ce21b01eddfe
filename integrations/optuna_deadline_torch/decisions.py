"""What a rank does at a step where it may leave: agree, save, leave."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from optuna_deadline.directives import Directive, Kind
from optuna_deadline.errors import DeadlineError
from optuna_deadline.fits import FitSegment
from optuna_deadline.segments import Segment
from optuna_deadline.values.scores import BestValue
from optuna_deadline_torch.consensus import Consensus, ReplicatedState, StepDecision
from optuna_deadline_torch.direction import Direction
from optuna_deadline_torch.ranks import TermFlag
from optuna_deadline_torch.sampler import ElasticBatchSampler
from optuna_deadline_torch.saver import CheckpointSaver
from optuna_deadline_torch.warm_memory import TrainingObjects


def leave_if_diverged(
    segment: Segment, consensus: Consensus, trained: ReplicatedState, finish: Callable[[], None]
) -> None:
    """Return to the last checkpoint, on one slot, if the ranks' models differ.

    Every rank calls it, before a checkpoint is made and before a value is reported.

    Args:
        segment: The rank's segment.
        consensus: Of its ranks.
        trained: The state that must be equal in all ranks.
        finish: Waits in all ranks until all writes are done.

    Raises:
        SegmentEnd: They differ.
    """
    reason = trained.difference(consensus)
    if reason is not None:
        segment.limit_slots(1, reason)
        finish()
        segment.leave(Directive(Kind.RESIZE, reason))


class SegmentController:
    """Follows directives in one rank of a segment, in step with its other ranks.

    Args:
        segment: The rank's segment.
        direction: Which direction is better.
        seed: Determines the order of samples.
        save_every: Seconds between safety checkpoints.
        take_state: Returns the state for a checkpoint; every rank calls it.
        trained: The state that must be equal in all ranks.
        verify: Raises if a checkpoint that was just written cannot be read.
        training_objects: All objects with tensors on the device, for a trial that is warm.
        grows: Whether a step takes a batch for each rank.
        even: Whether the number of slots must divide the batch.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        direction: Direction,
        seed: int,
        save_every: float,
        take_state: Callable[[], Mapping[str, Any]],
        trained: Callable[[], ReplicatedState],
        verify: Callable[[Path], Any] = lambda path: None,
        training_objects: Callable[[], TrainingObjects] | None = None,
        grows: bool = False,
        even: bool = False,
    ) -> None:
        self.segment = segment
        self.seed = seed
        self.grows = grows
        self._even = even
        self._batch = 0  # the greatest common divisor of all loaders' batches
        self.term = TermFlag()
        self.best = BestValue(direction)
        self.consensus = Consensus(segment.rank, segment.world_size)
        self.reported = -1  #: the last step that was reported
        self._save_every = save_every
        self._take_state = take_state
        self._trained = trained
        self._training_objects = training_objects
        #: What was logged, in this segment or before; shared by the fits of a trial.
        self.logged_topics: set[str] = getattr(segment, "topics", set())
        self.saver = CheckpointSaver(segment, verify)
        self._saved_at = time.monotonic()

    def end_fit(self, step: int) -> None:
        """Save the last state of one of several fits; every rank calls it."""
        if isinstance(self.segment, FitSegment):
            self.segment.end(lambda: self._save(step, None, wait=True))

    def start(self) -> None:
        """Start the time to the next safety checkpoint."""
        self._saved_at = time.monotonic()

    def should_log(self, topic: str) -> bool:
        """Whether to log here: once in a trial, in its first rank."""
        new = topic not in self.logged_topics
        self.logged_topics.add(topic)
        return new and self.segment.rank == 0

    def deal(self, batches: Any) -> ElasticBatchSampler:
        """An elastic batch sampler over the user's.

        Raises:
            DeadlineError: Slices must be even, and the loader has no batch size.
        """
        if self._even and not self.grows:
            size = getattr(batches, "batch_size", None)
            if not isinstance(size, int):
                raise DeadlineError(
                    "equal_shards=True needs a training loader with a batch_size: give it one, or"
                    " leave equal_shards out; uneven slices are weighed."
                )
            self._batch = math.gcd(self._batch, size)
            self.segment.even(self._batch)
        return ElasticBatchSampler(
            batches,
            seed=self.seed,
            rank=self.segment.rank,
            world_size=self.segment.world_size,
            grows=self.grows,
        )

    @property
    def checkpoint_due(self) -> bool:
        """Whether a safety checkpoint is due and the one before is written."""
        if time.monotonic() - self._saved_at < self._save_every:
            return False
        if self.saver.busy:
            self.saver.warn_if_slow(self._save_every)
        return not self.saver.busy

    def agree(self, *, save: bool) -> StepDecision:
        """Agree with the other ranks on what to do at this step."""
        return self.consensus.agree(self.segment.newest(), terminated=self.term.raised, save=save)

    def apply(
        self,
        decision: StepDecision,
        step: int,
        *,
        value: float | None = None,
        ending: bool = False,
    ) -> None:
        """Save and leave if that is the decision.

        Args:
            decision: The ranks' decision.
            step: The global step, which names the checkpoint.
            value: The report of these very weights, if there is one.
            ending: Whether training is about to end by itself: then no rank has to leave.

        A trial that was warm returns from here in its next segment.

        Raises:
            SegmentEnd: The ranks leave their slots here.
        """
        self.saver.check()
        directive = decision.directive
        if directive.kind is Kind.STOP:
            self.finish()  # the checkpoint that is being written may be the best model
            self.segment.leave(directive)
        leave = directive.leave and not ending
        if leave and directive.keep_warm and self._keep_warm(step, value):
            return
        if leave or decision.save:
            self._save(step, value, wait=leave or ending)
        if leave or ending:
            self.finish()
        if leave:
            self.segment.leave(directive)

    def leave_if_diverged(self) -> None:
        """Return to the last checkpoint, on one slot, if the ranks' models differ."""
        if self.segment.world_size > 1:
            leave_if_diverged(self.segment, self.consensus, self._trained(), self.finish)

    def finish(self) -> None:
        """Wait in all ranks until all writes are done: a rank that left earlier would end them."""
        self.saver.wait()
        self.consensus.barrier()

    def _keep_warm(self, step: int, value: float | None) -> bool:
        """Wait without a slot for the next segment; False if this process has to leave."""
        if self._training_objects is None or self.segment.world_size > 1 or self.term.raised:
            return False
        self.finish()  # the host's memory will soon be needed
        holdings = self._training_objects()
        memory = holdings.memory()
        if not memory.fits():
            return False
        state = self._take_state()
        memory.offload()
        try:
            self._write(memory.readable(state), step, value, wait=True)
        except BaseException:  # later code may read tensors that were moved
            memory.restore()
            raise
        self.segment.keep_warm(lambda: self.term.raised)
        memory.restore()
        holdings.after_restore()
        self.start()
        return True

    def _save(self, step: int, value: float | None, *, wait: bool) -> None:
        self.leave_if_diverged()
        state = self._take_state()
        if self.segment.rank == 0:
            self._write(state, step, value, wait=wait)
        self._saved_at = time.monotonic()

    def _write(
        self, state: Mapping[str, Any], step: int, value: float | None, *, wait: bool
    ) -> None:
        name = f"segment-{self.segment.fence:06d}-step-{step:09d}.ckpt"
        self.saver.save(state, name, step=self.reported, value=value, wait=wait)
