"""Training data of other kinds: streams, loaders with a state, several loaders. By name."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate


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


def source(name: str, loader: Any, data: Any, deadline: Any) -> Any:
    if name == "stream":
        return DataLoader(Stream(data, shuffled=False), 16)
    if name == "shuffled stream":
        return DataLoader(Stream(data, shuffled=True), 16)
    if name == "augmented":
        return augmented(data, loader.num_workers)
    if name == "wrapping":
        return Wrapping(data, 16)
    if name == "own order":
        return DataLoader(data, 16, sampler=OwnOrder(len(data)))
    if name == "endless":
        return DataLoader(data, 16, sampler=OwnOrder(len(data), endless=True))
    if name == "other in each slot":
        order = range(deadline.segment.rank, len(data))
        return DataLoader(data, 16, sampler=list(order))
    if name == "divided":
        return DataLoader(data, 16 // deadline.segment.world_size, shuffle=True)
    if name == "stateful":
        return Stateful(data, 16)
    if name == "stateful stream":
        return Unsized(data, 16)
    if name == "two, uneven":
        return {"a": DataLoader(data, 16, shuffle=True), "b": DataLoader(data, 9, shuffle=True)}
    if name == "dict of two":
        return {"a": DataLoader(data, 16, shuffle=True), "b": DataLoader(data, 24, shuffle=True)}
    if name == "list with a stream":
        return [DataLoader(data, 16, shuffle=True), DataLoader(Stream(data, shuffled=False), 16)]
    if name.startswith("combined "):
        loaders = {
            "a": DataLoader(data, 16, shuffle=True),
            "b": DataLoader(data, 24, shuffle=True),
        }
        return CombinedLoader(loaders, name.removeprefix("combined "))
    return loader
