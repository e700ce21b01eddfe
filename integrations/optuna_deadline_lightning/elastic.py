"""One segment of a trial inside one ``fit``: what to do at each step, and what to carry over."""

from __future__ import annotations

import time
from typing import Any

import lightning.pytorch as pl
import torch

from optuna_deadline.directives import Kind
from optuna_deadline.segments import Segment
from optuna_deadline_lightning import boundaries
from optuna_deadline_lightning.consensus import Consensus, Verdict
from optuna_deadline_lightning.metrics import Best, Direction, plain
from optuna_deadline_lightning.sampler import ElasticBatchSampler
from optuna_deadline_lightning.signals import TermFlag


class ElasticFit:
    """Obeys directives at places where Lightning resumes exactly.

    Args:
        segment: The rank's segment.
        direction: Which way is better.
        seed: Draws the order of samples.
        save_every: Seconds between safety checkpoints.
    """

    def __init__(
        self, segment: Segment, *, direction: Direction, seed: int, save_every: float
    ) -> None:
        self.segment = segment
        self.seed = seed
        self.save_every = save_every
        self.term = TermFlag()
        self._best = Best(direction)
        self._consensus = Consensus(segment.rank, segment.world_size)
        self._sampler: ElasticBatchSampler | None = None
        self._position = (0, 0)
        self._reported = -1  # the last epoch that was reported
        self._metrics: dict[str, float] = {}
        self._stepped = -1  # the global step at the last look
        self._saved_at = 0.0

    # ---- the data

    def deal(self, batches: Any) -> ElasticBatchSampler:
        """An elastic batch sampler over the user's."""
        return ElasticBatchSampler(
            batches,
            seed=self.seed,
            rank=self.segment.rank,
            world_size=self.segment.world_size,
        )

    def adopt(self, sampler: ElasticBatchSampler) -> None:
        """Lead the sampler that the trainer is going to use to where training is."""
        self._sampler = sampler
        sampler.seek(*self._position)

    def weight(self, batch: int) -> float:
        """What the loss of this rank's slice of a batch is scaled by."""
        return 1.0 if self._sampler is None else self._sampler.weight(batch)

    # ---- from the first step to the last

    def connect(self, trainer: pl.Trainer) -> None:
        """Connect the ranks; a fit that has nothing left to do still has its metrics."""
        self._consensus.connect()
        for name, value in self._metrics.items():
            trainer.callback_metrics[name] = torch.tensor(value, dtype=torch.float64)

    def start(self, trainer: pl.Trainer) -> None:
        """Begin to train: say how far this can go."""
        self._stepped = trainer.global_step
        self._saved_at = time.monotonic()
        if (last := boundaries.last_step(trainer)) is not None:
            self.segment.horizon(last)

    def after_batch(self, trainer: pl.Trainer) -> None:
        """Look for a directive where the optimizer has just stepped, and obey."""
        self.segment.progress(boundaries.progress(trainer))
        if trainer.global_step != self._stepped:  # else gradients are being accumulated
            self._stepped = trainer.global_step
            verdict = self._agree(save=self._due())
            if verdict.directive.kind is Kind.STOP or boundaries.resumes_exactly(trainer):
                self._obey(trainer, verdict)

    def after_validation(self, trainer: pl.Trainer, value: float) -> None:
        """Keep the best: its checkpoint is of the very weights that were evaluated."""
        self._reported = trainer.current_epoch
        self.segment.progress(boundaries.progress(trainer))
        verdict = self._agree(save=self._best.improved(value) or self._due())
        self._obey(trainer, verdict, value=value, ending=boundaries.ends_by_itself(trainer))

    # ---- what a checkpoint carries over, in plain numbers

    def state(self, trainer: pl.Trainer) -> dict[str, Any]:
        """The position in the data and the values so far."""
        return {
            "position": list(boundaries.position(trainer)),
            "best": self._best.value,
            "reported": self._reported,
            "metrics": plain(trainer.callback_metrics),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        epoch, batch = state["position"]
        self._position = epoch, batch
        self._best.value = state["best"]
        self._reported = state["reported"]
        self._metrics = state["metrics"]
        if self._sampler is not None:
            self._sampler.seek(epoch, batch)

    # ---- inside

    def _due(self) -> bool:
        return time.monotonic() - self._saved_at >= self.save_every

    def _agree(self, *, save: bool) -> Verdict:
        return self._consensus.agree(self.segment.newest(), terminated=self.term.raised, save=save)

    def _obey(
        self,
        trainer: pl.Trainer,
        verdict: Verdict,
        *,
        value: float | None = None,
        ending: bool = False,
    ) -> None:
        directive = verdict.directive
        if directive.kind is Kind.STOP:
            self.segment.leave(directive)
        leave = directive.leave and not ending  # a fit about to return is not sent away
        if leave or verdict.save:
            self._save(trainer, value)
        if leave:
            self.segment.leave(directive)

    def _save(self, trainer: pl.Trainer, value: float | None) -> None:
        name = f"segment-{self.segment.fence:06d}-step-{trainer.global_step:09d}.ckpt"
        path = self.segment.folder / name
        trainer.save_checkpoint(path, weights_only=False)  # all ranks; rank 0 writes
        if self.segment.rank == 0:
            self.segment.publish(path, step=self._reported, value=value)
        self._saved_at = time.monotonic()
