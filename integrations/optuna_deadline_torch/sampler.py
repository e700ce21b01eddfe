"""The same global batches for every number of ranks.

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
from optuna_deadline_torch.seeding import READING, seeded

_log = logging.getLogger(__name__)
_SEEDED = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_PASSES = 10  # over the data, that an epoch of unknown length may have


@dataclass(frozen=True)
class EpochBatches:
    """Batches of an epoch: all of them, and how many are meant."""

    whole: Sequence[Sequence[int]]
    count: int

    def number(self) -> int:
        """A number of 63 bits that other batches do not have."""
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
    """The indices of a batch, with what its samples' random numbers are seeded from.

    Attributes:
        parts: The seed's parts, which pickling keeps: samples are read in another process.
    """

    parts: tuple[int, ...] = ()


class ElasticBatchSampler(Sampler[list[int]]):
    """Deals each batch of another batch sampler to the ranks.

    Args:
        batches: The batch sampler of the whole training, as for one device: with its global batch
            size, its shuffling, its ``drop_last``.
        seed: Draws the order, together with the epoch.
        rank: Of this process.
        world_size: Between how many ranks each batch is dealt. Slices of unequal length are
            made good by :meth:`weight`.
        grows: Whether a step takes a batch for each rank, and not one for all. Places are those
            of the whole training's batches all the same.
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
        self.steps: int | None = None  #: what its length is, where not the number of batches
        self.limit: int | None = None  #: batches of an epoch, where the user's has no length
        self.samples: int | None = None  #: in the data, where that is known
        self.epoch = 0
        self.start = 0
        self.cycles = False  #: whether it is begun again within an epoch, as one of several may be
        self.cycle = 0
        self.asked = False  #: whether a loader has asked for a batch
        self._drawn: dict[tuple[int, int], Sequence[Sequence[int]]] = {}

    @property
    def sampler(self) -> ElasticBatchSampler:
        """Itself: Lightning looks for ``set_epoch`` at ``batch_sampler.sampler`` only."""
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
        """Go on at a batch of an epoch; call before the first iteration."""
        self.epoch = epoch
        self.cycle, self.start = self._within(batch) if batch else (0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; the one that was sought goes on where it was."""
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def epoch_batches(self, epoch: int, cycle: int = 0) -> Sequence[Sequence[int]]:
        """The global batches of an epoch, the same on every rank."""
        if (epoch, cycle) not in self._drawn:
            for old in sorted(self._drawn)[:-1]:  # loaders fetch ahead: two may be in use
                del self._drawn[old]
            self._drawn[epoch, cycle] = self._draw(epoch, cycle)
        return self._drawn[epoch, cycle]

    def _draw(self, epoch: int, cycle: int) -> Sequence[Sequence[int]]:
        inner = getattr(self.batches, "sampler", None)
        with seeded(self.seed, epoch, *([cycle] if cycle else [])) as seed:
            for source in (self.batches, inner):
                if (set_epoch := getattr(source, "set_epoch", None)) is not None:
                    set_epoch(epoch)
                generator = getattr(source, "generator", None)
                if generator is not None:  # the user's own: it would go on from the last epoch
                    generator.manual_seed(seed)
            return self._listed()

    def _listed(self) -> Sequence[Sequence[int]]:
        """The batches that the user's sampler gives now.

        Raises:
            DeadlineError: It goes on for ever, as far as can be seen.
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
        """What the user calls the sampler that draws the order."""
        inner = getattr(self.batches, "sampler", None)
        own = inner is None or type(self.batches) is not BatchSampler
        return type(self.batches if own else inner).__name__

    def draws_alike(self, epoch: int) -> bool:
        """Whether an epoch that is drawn again has the same batches."""
        inner = getattr(self.batches, "sampler", None)
        if type(self.batches) is BatchSampler and type(inner) in _SEEDED:
            return True
        again = self._draw(epoch, 0)
        return EpochBatches(again, len(again)).number() == self.drawn_before(epoch, None).number()

    def drawn_before(self, epoch: int, batch: int | None) -> EpochBatches:
        """The batches of an epoch before one, or all of them, without what a rank takes of them.

        Of a loader that is begun again within the epoch they are those of its newest cycle.
        """
        cycle = 0
        if batch is not None and self.cycles:
            cycle, batch = divmod(batch, max(len(self.epoch_batches(epoch)), 1))
        whole = self.epoch_batches(epoch, cycle)
        return EpochBatches(whole, len(whole) if batch is None else batch)

    def growth(self, batch: int) -> int:
        """How many batches the step has that begins with ``batch``."""
        return max(min(self.per_step, len(self.epoch_batches(self.epoch)) - batch), 1)

    def even(self, batch: int) -> bool:
        """Whether each rank has as much of that step as one batch."""
        whole = self._step(self.epoch_batches(self.epoch), batch)
        return self.growth(batch) == self.world_size and len(whole) % self.world_size == 0

    def weight(self, batch: int) -> float:
        """What this rank's mean loss must be scaled by so that the ranks' mean is the batch's."""
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
        """In which cycle a batch of the epoch is, and where in it."""
        size = len(self.epoch_batches(self.epoch)) if self.cycles else 0
        return divmod(batch, size) if size else (0, batch)

    def __len__(self) -> int:
        return len(self.batches) if self.steps is None else self.steps


def one_weight(samplers: Sequence[ElasticBatchSampler], batch: int) -> float:
    """What one loss over a batch of each loader is scaled by in this rank.

    Raises:
        DeadlineError: There are slices of several batches, and not all alike.
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
    """How many batches there are; None where that is not known."""
    try:
        return len(batches)
    except (TypeError, NotImplementedError):
        return None
