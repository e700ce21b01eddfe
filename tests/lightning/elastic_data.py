"""Training data of other kinds: streams, loaders with a state, several loaders. By name."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from elastic_harness import Plan
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    WeightedRandomSampler,
    default_collate,
)


def triple(batch: Any) -> Any:
    """The samples, whichever loader they come from."""
    several = list(batch.values()) if isinstance(batch, dict) else batch
    if not isinstance(several[0], torch.Tensor) or isinstance(batch, dict):
        parts = [part for part in several if part is not None]
        return [torch.cat(columns) for columns in zip(*parts, strict=True)]
    return batch


class Stream(IterableDataset[Any]):
    """The samples in one order, or in a new one each time."""

    def __init__(self, data: Dataset[Any], *, shuffled: bool) -> None:
        self.data, self.shuffled = data, shuffled

    def __iter__(self) -> Iterator[Any]:
        size = len(self.data)  # type: ignore[arg-type]
        order = torch.randperm(size) if self.shuffled else torch.arange(size)
        return (self.data[int(index)] for index in order)


class Resuming(DataLoader[Any]):
    """A loader over a map-style dataset that goes on by a state, as a StatefulDataLoader does."""

    _begun, _skipped = 0, 0

    def __iter__(self) -> Any:
        skipped, self._skipped = self._skipped, 0
        for number, batch in enumerate(super().__iter__(), start=1):
            self._begun = number
            if number > skipped:
                yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self._begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._skipped = state["begun"]


class Unsized:
    """A loader that knows its place, and not how long it is: a new order in each epoch."""

    def __init__(self, data: Dataset[Any], batch: int) -> None:
        self.data, self.batch = data, batch
        self.epoch, self.next = 0, 0

    def _batches(self) -> int:
        return len(self.data) // self.batch  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self._batches() * self.batch, generator=generator)
        while self.next < self._batches():
            mine = order[self.next * self.batch : (self.next + 1) * self.batch]
            self.next += 1
            samples = [self.data[int(index)] for index in mine]
            yield [torch.stack(column) for column in zip(*samples, strict=True)]
        self.epoch, self.next = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.next = state["epoch"], state["next"]


class Stateful(Unsized):
    """One that also knows how long it is."""

    def __len__(self) -> int:
        return self._batches()


class OwnOrder(Sampler[int]):
    """Draws from a generator of its own: one for all epochs, or a new one in each of them."""

    def __init__(self, size: int, *, endless: bool = False) -> None:
        self.size, self.endless = size, endless
        self.generator_of_all = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        own = None if self.endless else self.generator_of_all
        yield from torch.randperm(self.size, generator=own).tolist()
        while self.endless:
            yield from torch.randperm(self.size).tolist()


def seed_anew() -> None:
    """Let nothing depend on the random numbers of a process."""
    seed = int.from_bytes(os.urandom(4), "little")
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def noise() -> torch.Tensor:
    """Random numbers of all three libraries."""
    return torch.randn(8) + torch.from_numpy(np.random.randn(8)) + random.gauss(0, 1)


class Augmented(Dataset[Any]):
    """Samples that are others each time, by chance."""

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        x, y, ids = self.data[index]
        return x + 0.1 * noise(), y, ids


class AugmentedAtOnce(Augmented):
    """The same for a batch at once, as Hugging Face's do."""

    def __getitems__(self, indices: list[int]) -> Any:
        common = noise()
        return [(x + common, y, ids) for x, y, ids in (self.data[one] for one in indices)]


def augment_batch(samples: Any) -> Any:
    """A collate function that augments."""
    x, y, ids = default_collate(samples)
    return x + 0.1 * noise(), y, ids


def augmented(data: Any, workers: int, *, at_once: bool = False) -> DataLoader[Any]:
    """A loader that augments wherever a loader may."""
    samples = AugmentedAtOnce(data) if at_once else Augmented(data)
    return DataLoader(samples, 16, shuffle=True, num_workers=workers, collate_fn=augment_batch)


class Wrapping(DataLoader[Any]):
    """Gives the batches of another loader."""

    def __iter__(self) -> Any:
        return iter(DataLoader(self.dataset, 16))


class Prefetching(DataLoader[Any]):
    """Does something with each batch before it gives it."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield [part.clone() for part in batch]


class KeepsIterator(DataLoader[Any]):
    """Keeps its workers by one iterator over all epochs, as timm's MultiEpochsDataLoader."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)


class CountsEpochs(Sampler[int]):
    """Draws another order each time that it is asked, from a count of its own."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(self.size, generator=generator).tolist())


class Buckets(Sampler[list[int]]):
    """Batches of several sizes, and more of them in one epoch than in another."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _batches(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self.epoch)
        left = torch.randperm(self.size, generator=generator).tolist()
        found: list[list[int]] = []
        while left:
            count = 9 + 5 * (len(found) % 3) + self.epoch
            found.append(left[:count])
            left = left[count:]
        return found

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches())


class Unmeasured(Buckets):
    """The same without a length."""

    __len__ = None  # type: ignore[assignment]


class OwnGenerator(Augmented):
    """Draws from a generator that it keeps."""

    def __init__(self, data: Dataset[Any]) -> None:
        super().__init__(data)
        self.rng = np.random.default_rng(4)

    def __getitem__(self, index: int) -> Any:
        x, y, ids = self.data[index]
        return x + 0.1 * torch.from_numpy(self.rng.standard_normal(8)), y, ids


def shuffled(data: Any, size: int = 16, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, size, shuffle=True, **options)


def sampled(data: Any, sampler: Any) -> DataLoader[Any]:
    return DataLoader(data, 16, sampler=sampler)


def other_in_each_slot(data: Any, segment: Any) -> Any:
    return sampled(data, list(range(segment.rank, len(data))))


def divided(data: Any, segment: Any) -> Any:
    return shuffled(data, 16 // segment.world_size)


def chosen_by_number(data: Any, segment: Any) -> Any:
    """Batches made by the sampler, which are read at once."""
    order = [list(range(first, min(first + 16, len(data)))) for first in range(0, len(data), 16)]
    return DataLoader(data, batch_size=None, sampler=order)


def two(data: Any, *, short: int = 24) -> dict[str, Any]:
    return {"a": shuffled(data), "b": shuffled(data, short)}


#: By name: made from the samples, in a segment.
SOURCES: dict[str, Callable[[Any, Any], Any]] = {
    "stream": lambda data, _: DataLoader(Stream(data, shuffled=False), 16),
    "shuffled stream": lambda data, _: DataLoader(Stream(data, shuffled=True), 16),
    "wrapping": lambda data, _: Wrapping(data, 16),
    "own order": lambda data, _: sampled(data, OwnOrder(len(data))),
    "own epochs": lambda data, _: sampled(data, CountsEpochs(len(data))),
    "endless": lambda data, _: sampled(data, OwnOrder(len(data), endless=True)),
    "other in each slot": other_in_each_slot,
    "divided": divided,
    "stateful": lambda data, _: Stateful(data, 16),
    "resuming": lambda data, _: Resuming(data, 16, shuffle=True),
    "stateful stream": lambda data, _: Unsized(data, 16),
    "two, uneven": lambda data, _: two(data, short=9),
    "dict of two": lambda data, _: two(data),
    "list with a stream": lambda data, _: [
        shuffled(data),
        DataLoader(Stream(data, shuffled=False), 16),
    ],
    "combined min_size": lambda data, _: CombinedLoader(two(data), "min_size"),
    "combined max_size": lambda data, _: CombinedLoader(two(data), "max_size"),
    "combined max_size_cycle": lambda data, _: CombinedLoader(two(data), "max_size_cycle"),
    "persistent": lambda data, _: shuffled(data, num_workers=2, persistent_workers=True),
    "weighted": lambda data, _: sampled(
        data, WeightedRandomSampler(torch.arange(1.0, len(data) + 1).tolist(), len(data))
    ),
    "generator": lambda data, _: shuffled(data, generator=torch.Generator().manual_seed(3)),
    "distributed": lambda data, _: sampled(data, DistributedSampler(data, num_replicas=1, rank=0)),
    "buckets": lambda data, _: DataLoader(data, batch_sampler=Buckets(len(data))),
    "unmeasured": lambda data, _: DataLoader(data, batch_sampler=Unmeasured(len(data))),
    "batched": chosen_by_number,
    "prefetching": lambda data, _: Prefetching(data, 16, shuffle=True),
    "keeps its iterator": lambda data, _: KeepsIterator(data, 16, shuffle=True, num_workers=1),
    "read at random": lambda data, _: shuffled(Augmented(data)),
    "read at random by workers": lambda data, _: shuffled(Augmented(data), num_workers=2),
    "collated at random": lambda data, _: shuffled(data, collate_fn=augment_batch),
    "own generator": lambda data, _: shuffled(OwnGenerator(data)),
}


def source(plan: Plan, loader: Any, data: Any, segment: Any) -> Any:
    """The training data that a plan names, else ``loader``."""
    if plan.data == "augmented":
        return augmented(data, loader.num_workers)
    return SOURCES[plan.data](data, segment) if plan.data in SOURCES else loader
