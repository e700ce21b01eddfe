"""The data of one epoch of a loop: its loaders, and what is read in their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from optuna_deadline.errors import DeadlineError
from optuna_deadline_torch.data_digest import data_digest
from optuna_deadline_torch.loaders import main_process_reader
from optuna_deadline_torch.sample_order import refuse_undealt
from optuna_deadline_torch.sampler import ElasticBatchSampler, one_weight
from optuna_deadline_torch.seeding import Generators
from optuna_deadline_torch.sources import LoaderSources, endless, length_of


@dataclass(frozen=True)
class EpochData:
    """The loaders of one epoch.

    Attributes:
        loaders: The user's.
        sources: What is read in their place.
        samplers: Distribute their batches to the slots; none if the first one's cannot be.
        replayed: Whether an epoch that resumes reads the batches before its position again.
    """

    loaders: Sequence[Any]
    sources: Sequence[Any]
    samplers: Sequence[ElasticBatchSampler]
    replayed: bool

    @classmethod
    def of(cls, loaders: Sequence[Any], sources: LoaderSources, rule: str | None) -> EpochData:
        """The data of some loaders.

        Args:
            loaders: The loaders.
            sources: Those of the segment so far.
            rule: The scaling rule, if there is one.

        Raises:
            DeadlineError: They cannot be read side by side.
        """
        first, *others = loaders
        read = [sources.get(first), *map(sources.get_beside, others)]
        exact = isinstance(getattr(read[0], "batch_sampler", None), ElasticBatchSampler)
        samplers = [one.batch_sampler for one in read] if exact else []
        if others:
            _refuse_beside(samplers, loaders, rule)
        return cls(loaders, read, samplers, replayed=not (exact or sources.remembers))

    def generators(self, model: nn.Module) -> Generators:
        """The random generators of a model and of the reads in this process."""
        return Generators(
            *(part for one in self.sources for part in main_process_reader(one)), model
        )

    def digest(self) -> None:
        """Take the digests of the datasets again, when their values were restored."""
        for sampler, loader in zip(self.samplers, self.loaders, strict=False):
            sampler.data = data_digest(loader.dataset)

    def seek(self, epoch: int, start: int) -> None:
        """Continue at a batch of an epoch; call before the first read."""
        for place, sampler in enumerate(self.samplers):
            sampler.cycles = place > 0
            sampler.seek(epoch, start)

    def size(self, epoch: int, start: int, *, needed: bool) -> float:
        """The number of batches in the epoch, infinite if it is neither known nor needed.

        Raises:
            DeadlineError: It is needed and unknown, or one loss over a batch of each loader
                cannot be weighted from ``start`` on.
        """
        if not self.samplers:
            return length_of(self.loaders[0]) if needed else math.inf
        size = len(self.samplers[0].epoch_batches(epoch))
        for number in range(start, size) if len(self.samplers) > 1 else ():
            self.weight(number)
        return size

    def read(self, start: int, reseed: Callable[[int], None]) -> Iterator[Any]:
        """The batches from a position on, in a tuple if there are several loaders.

        Args:
            start: The position.
            reseed: Seeds the random numbers of a batch that is read again.
        """
        batches, *beside = iter(self.sources[0]), *map(endless, self.sources[1:])
        for number in range(start) if self.replayed else ():
            reseed(number)
            next(batches, None)
        return self._read(batches, beside)

    def _read(self, batches: Iterator[Any], beside: Sequence[Iterator[Any]]) -> Iterator[Any]:
        for batch in batches:
            whole = (batch, *map(next, beside)) if beside else batch
            refuse_undealt(self.samplers)
            yield whole

    def growth(self, batch: int) -> int:
        """The number of batches of the step that starts with ``batch``."""
        return self.samplers[0].growth(batch) if self.samplers else 1

    def even(self, batch: int) -> bool:
        """Whether each rank's part of a longer step is one batch."""
        return self.growth(batch) > 1 and self.samplers[0].even(batch)

    def weight(self, batch: int) -> float:
        """The factor of a loss in this rank."""
        return one_weight(self.samplers, batch)


def _refuse_beside(samplers: Sequence[Any], loaders: Sequence[Any], rule: str | None) -> None:
    if not samplers:
        raise DeadlineError(
            f"The first of several loaders must be dealt too, and {type(loaders[0]).__name__}"
            " cannot be: pass DataLoaders over map-style datasets to loop.batches(a, b)."
        )
    if len({id(one) for one in loaders}) < len(loaders):
        raise DeadlineError(
            "loop.batches(a, a) has one loader twice: pass two loaders over the same data."
        )
    if rule is not None:
        raise DeadlineError(
            "scaling=... trains on the batches of one loader: pass one over pairs, such as"
            " those of torch.utils.data.StackDataset(a, b)."
        )
