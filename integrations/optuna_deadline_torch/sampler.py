"""Global batches that are equal for every number of ranks.

A batch sampler is run once per epoch under a seed made from (seed, epoch), so its batches are the
same in every process and every segment; rank ``r`` of ``k`` takes ``[r::k]`` of each. The number
of batches never depends on ``k``: counters, learning rates and schedules stay valid when ``k``
changes, and (epoch, batch) is all the state there is.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from optuna_deadline.errors import DeadlineError
from optuna_deadline_torch.seeding import READING, generators_of, seeded

_log = logging.getLogger(__name__)
_SEEDED = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_PASSES = 10  # the most passes over the data in an epoch of unknown length


@dataclass(frozen=True)
class EpochBatches:
    """Batches of an epoch: all of them, and their intended number."""

    whole: Sequence[Sequence[int]]
    count: int

    def number(self) -> int:
        """A hash of the batches, 63 bits."""
        digest = hashlib.blake2b(digest_size=8)
        for batch in self.whole[: self.count]:
            try:
                indices = np.asarray(batch, dtype=np.int64).tobytes()
            except (TypeError, ValueError, OverflowError):  # keys of another kind
                indices = repr(batch).encode()
            digest.update(len(batch).to_bytes(8, "little") + indices)
        return int.from_bytes(digest.digest(), "little") >> 1

    def digest(self) -> str:
        """That number as a text."""
        return f"{self.number():016x}"


class SeededIndices(list[int]):
    """The indices of a batch, with the seed of its samples' random numbers.

    Attributes:
        parts: The seed's parts; they are pickled, because another process reads the samples.
    """

    parts: tuple[int, ...] = ()


class ElasticBatchSampler(Sampler[list[int]]):
    """Distributes each batch of another batch sampler to the ranks.

    Args:
        batches: The batch sampler of the whole training, as for one device: with its global batch
            size, its shuffling, its ``drop_last``.
        seed: Determines the order, together with the epoch.
        rank: Of this process.
        world_size: The number of ranks. :meth:`weight` corrects for slices of unequal length.
        grows: Whether a step takes a batch for each rank, instead of one for all. Positions are
            those of the whole training's batches in both cases.
    """

    def __init__(
        self,
        batches: Any,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        grows: bool = False,
    ) -> None:
        size = getattr(batches, "batch_size", None)
        if isinstance(size, int) and size < world_size and rank == 0 and not grows:
            _log.warning(
                "A batch of %d keeps %d of the trial's %d slots idle; the result is the same."
                " Allow at most %d slots per trial, or choose a larger batch_size.",
                size,
                world_size - size,
                world_size,
                size,
            )
        self.batches = batches
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.per_step = world_size if grows else 1  #: batches of the whole training in a step
        self.steps: int | None = None  #: its length, if that is not the number of batches
        self.limit: int | None = None  #: batches of an epoch, if the user's has no length
        self.samples: int | None = None  #: in the data, if known
        self.data = ""  #: a digest of it
        self.epoch = 0
        self.start = 0
        self.cycles = False  #: whether it starts again within an epoch, as one of several may
        self.cycle = 0
        self.asked = False  #: whether a loader has requested a batch
        self._drawn: dict[tuple[int, int], Sequence[Sequence[int]]] = {}

    @property
    def sampler(self) -> ElasticBatchSampler:
        """Itself: Lightning looks for ``set_epoch`` only at ``batch_sampler.sampler``."""
        return self

    @property
    def batch_size(self) -> Any:
        """The global batch size."""
        return getattr(self.batches, "batch_size", None)

    @property
    def drop_last(self) -> bool:
        """Whether a last partial batch is dropped."""
        return bool(getattr(self.batches, "drop_last", False))

    def seek(self, epoch: int, batch: int) -> None:
        """Continue at a batch of an epoch; call before the first iteration."""
        self.epoch = epoch
        self.cycle, self.start = self._within(batch) if batch else (0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; after :meth:`seek`, it starts at that batch."""
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def epoch_batches(self, epoch: int, cycle: int = 0) -> Sequence[Sequence[int]]:
        """The global batches of an epoch, the same on every rank."""
        if (epoch, cycle) not in self._drawn:
            for old in sorted(self._drawn)[:-1]:  # loaders prefetch: two may be in use
                del self._drawn[old]
            self._drawn[epoch, cycle] = self._draw(epoch, cycle)
        return self._drawn[epoch, cycle]

    def _draw(self, epoch: int, cycle: int) -> Sequence[Sequence[int]]:
        inner = getattr(self.batches, "sampler", None)
        with seeded(self.seed, epoch, *([cycle] if cycle else [])) as seed:
            generators_of(self.batches, inner).seed(seed)
            for source in (self.batches, inner):
                if (set_epoch := getattr(source, "set_epoch", None)) is not None:
                    set_epoch(epoch)
            return self._listed()

    def _listed(self) -> Sequence[Sequence[int]]:
        """The batches of the user's sampler now.

        Raises:
            DeadlineError: It seems endless.
        """
        batches, samples = _length(self.batches), self.samples
        limit = self.limit if batches is None else None
        found: list[list[int]] = []
        dealt = 0
        for batch in islice(self.batches, limit):
            found.append(list(batch))
            dealt += len(found[-1])
            if limit is not None:
                continue
            if batches is not None:
                endless = len(found) > _PASSES * (batches + 1)
            else:
                endless = dealt > _PASSES * max(1_000_000 if samples is None else samples, 100)
            if endless:
                raise DeadlineError(
                    f"The training loader's {self.kind} has given {dealt} samples of one epoch and"
                    " goes on: let its __iter__ end with the epoch and its __len__ say how long"
                    " that is, or, in Lightning, leave __len__ out and pass"
                    " limit_train_batches=N to the trainer."
                )
        return found

    @property
    def kind(self) -> str:
        """The name of the sampler that draws the order."""
        inner = getattr(self.batches, "sampler", None)
        own = inner is None or type(self.batches) is not BatchSampler
        return type(self.batches if own else inner).__name__

    def draws_alike(self, epoch: int) -> bool:
        """Whether an epoch has the same batches when it is drawn again."""
        inner = getattr(self.batches, "sampler", None)
        if type(self.batches) is BatchSampler and type(inner) in _SEEDED:
            return True
        again = self._draw(epoch, 0)
        return EpochBatches(again, len(again)).number() == self.drawn_before(epoch, None).number()

    def drawn_before(self, epoch: int, batch: int | None) -> EpochBatches:
        """All batches of an epoch, or those before one, not divided between ranks.

        For a loader that starts again within the epoch, they are those of its newest cycle.
        """
        cycle = 0
        if batch is not None and self.cycles:
            cycle, batch = divmod(batch, max(len(self.epoch_batches(epoch)), 1))
        whole = self.epoch_batches(epoch, cycle)
        return EpochBatches(whole, len(whole) if batch is None else batch)

    def growth(self, batch: int) -> int:
        """The number of batches of the step that starts with ``batch``."""
        return max(min(self.per_step, len(self.epoch_batches(self.epoch)) - batch), 1)

    def even(self, batch: int) -> bool:
        """Whether each rank's part of that step is one batch."""
        whole = self._step(self.epoch_batches(self.epoch), batch)
        return self.growth(batch) == self.world_size and len(whole) % self.world_size == 0

    def weight(self, batch: int) -> float:
        """The factor for this rank's mean loss with which the ranks' mean is the batch's."""
        if self.world_size == 1:
            return 1.0
        cycle, batch = self._within(batch)
        batches = self.epoch_batches(self.epoch, cycle)
        if batch >= len(batches):  # one of several loaders, which has ended before the others
            return 1.0
        whole = len(self._step(batches, batch))
        mine = len(range(self.rank, whole, self.world_size))
        return mine * self.world_size / whole

    def __iter__(self) -> Iterator[list[int]]:
        self.asked = True
        epoch, cycle = self.epoch, self.cycle
        batches = self.epoch_batches(epoch, cycle)
        for first in range(self.start, len(batches), self.per_step):
            batch = self._step(batches, first)
            # A rank without a sample still has to take part: it gets one of weight 0.
            mine = SeededIndices(batch[self.rank :: self.world_size] or batch[:1])
            mine.parts = self.seed, epoch, cycle, first, self.rank, READING
            yield mine
        self.cycle, self.start = self.cycle + self.cycles, 0

    def _step(self, batches: Sequence[Sequence[int]], first: int) -> Sequence[int]:
        if self.per_step == 1:
            return batches[first]
        return [one for batch in batches[first : first + self.per_step] for one in batch]

    def _within(self, batch: int) -> tuple[int, int]:
        """The cycle of a batch of the epoch, and its position in it."""
        size = len(self.epoch_batches(self.epoch)) if self.cycles else 0
        return divmod(batch, size) if size else (0, batch)

    def __len__(self) -> int:
        return len(self.batches) if self.steps is None else self.steps


def one_weight(samplers: Sequence[ElasticBatchSampler], batch: int) -> float:
    """The factor of one loss over a batch of each loader in this rank.

    Raises:
        DeadlineError: Slices of the batches differ in their weights.
    """
    weights = {sampler.weight(batch) for sampler in samplers}
    if len(weights) > 1:
        raise DeadlineError(
            "The batches of several training loaders are not shared alike between"
            f" {samplers[0].world_size} slots, so one loss cannot be weighed: choose sizes that"
            " the number of slots divides and drop_last=True, or let each trial have one slot:"
            " run(max_slots=1), or --max-slots 1."
        )
    return weights.pop() if weights else 1.0


def _length(batches: Any) -> int | None:
    """The number of batches; None if unknown."""
    try:
        return len(batches)
    except (TypeError, NotImplementedError):
        return None
