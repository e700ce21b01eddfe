"""The user's training loader, distributed to the ranks and resumable within an epoch.

A loader that cannot be distributed trains on one slot only. With a state of its own, it resumes
from that. Any other is read again from its beginning; each read is seeded, so a loader that
shuffles in this process yields the same again.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from optuna_deadline.errors import DeadlineError
from optuna_deadline_torch.data_digest import data_digest
from optuna_deadline_torch.sampler import ElasticBatchSampler, SeededIndices
from optuna_deadline_torch.seeding import Generators, reseed

#: The epoch and the next batch of the training.
Place = Callable[[], tuple[int, int]]
_KEPT = 3  # states: that of training, and those of prefetched batches


@runtime_checkable
class Stateful(Protocol):
    """A loader with a state, such as torchdata's ``StatefulDataLoader``."""

    def state_dict(self) -> dict[str, Any]:
        """The present position."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue at a position."""


class LoaderWrapper:
    """The user's loader with another iterator.

    Args:
        loader: The loader.
        place: The position of the training.
    """

    def __init__(self, loader: Any, place: Place) -> None:
        self.loader = loader
        self._place = place

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


class ReplayedLoader(LoaderWrapper):
    """Starts again in each segment, and reads up to the position of the training.

    Args:
        loader: The loader.
        place: The position of the training.
        seed: Seeds the random numbers of a read, by epoch and batch; -1 is the beginning.
    """

    def __init__(self, loader: Any, place: Place, seed: Callable[[int, int], None]) -> None:
        super().__init__(loader, place)
        self._seed = seed

    def __iter__(self) -> Iterator[Any]:
        epoch, done = self._place()
        self._seed(epoch, -1)
        batches, number = iter(self.loader), 0
        while True:
            self._seed(epoch, number)
            try:
                batch = next(batches)
            except StopIteration:
                return
            number += 1
            if number > done:
                yield batch


class ResumableLoader(LoaderWrapper):
    """A loader with a state, saved at the training's position whatever it has prefetched."""

    def __init__(self, loader: Any, place: Place) -> None:
        super().__init__(loader, place)
        self._begun: tuple[tuple[int, int], dict[str, Any]] | None = None
        self._states: dict[tuple[int, int], dict[str, Any]] = {}
        self._batches: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        place = epoch, done = self._place()
        if self._begun is not None and self._begun[0] == place:
            self.loader.load_state_dict(self._begun[1])  # nothing that it yielded was trained on
        self._begun = place, self.loader.state_dict()
        self._states = {place: self._begun[1]}
        self._batches = iter(self.loader)
        for batch in self._batches:
            done += 1
            self._states[epoch, done] = self.loader.state_dict()
            if len(self._states) > _KEPT:
                del self._states[min(self._states)]
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The loader's state at the training's position."""
        place = self._place()
        if place in self._states:
            return self._states[place]
        last = max(self._states, default=None)
        if last is not None and self._is_all(last[1]):
            next(self._batches, None)  # its end is past the last batch: it starts again there
        return dict(self.loader.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self.loader.load_state_dict(state)

    def _is_all(self, batches: int) -> bool:
        try:
            return batches >= len(self.loader)
        except TypeError:
            return False


_log = logging.getLogger(__name__)

Deal = Callable[[Any], ElasticBatchSampler]


class SeededDataset:
    """The user's dataset, read with random numbers that depend on the batch only.

    In a loader's worker process they would depend on how many batches it has read before. A read
    includes the collate function, which is called right after it.

    Args:
        dataset: A map-style dataset, whose attributes are read and set through this one.
        collate: The collate function.
    """

    dataset: Any
    __collate: Any
    __own: Generators | None

    def __init__(self, dataset: Any, collate: Any = None) -> None:
        mine = {
            "dataset": dataset,
            "_SeededDataset__collate": collate,
            "_SeededDataset__own": None,
        }
        self.__dict__.update(mine)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: list[Any]) -> Any:
        if isinstance(indices, SeededIndices):
            if self.__own is None:  # now, in the worker process, whose objects are copies
                self.__dict__["_SeededDataset__own"] = Generators(self.dataset, self.__collate)
            reseed(*indices.parts, own=self.__own)
        if read := getattr(self.dataset, "__getitems__", None):
            return read(indices)
        return [self.dataset[index] for index in indices]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)


def elastic_loader(loader: DataLoader[Any], deal: Deal) -> DataLoader[Any]:
    """A copy of ``loader`` whose batches are distributed to the ranks.

    Args:
        loader: A loader over a map-style dataset, with the global batch size.
        deal: Makes the elastic batch sampler from the loader's own.
    """
    if isinstance(loader.batch_sampler, ElasticBatchSampler):
        return loader
    if isinstance(loader.sampler, DistributedSampler):
        raise DeadlineError(
            "The training loader has a DistributedSampler already: leave it out,"
            " each batch is distributed to the slots."
        )
    if any(
        isinstance(one, _BaseDataLoaderIter)
        for name, one in vars(loader).items()
        if name != "_iterator"
    ):
        raise DeadlineError(
            f"The training loader ({type(loader).__name__}) has begun to read batches of its own,"
            " which cannot be distributed to slots: pass an ordinary DataLoader with"
            " persistent_workers=True, whose workers are kept between epochs too."
        )
    dealt = deal(loader.batch_sampler)
    dealt.data = data_digest(loader.dataset)
    try:
        dealt.samples = len(loader.dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        dealt.samples = None
    # A loader with a state would restore it too, and so skip batches twice.
    elastic = _without_state(loader) if isinstance(loader, Stateful) else copy.copy(loader)
    elastic._iterator = None  # a loader that has yielded a batch keeps the user's order
    # A copy keeps the loader's class, collate function and workers. DataLoader itself forbids
    # the assignment, because a running iterator would ignore the new sampler.
    object.__setattr__(elastic, "batch_sampler", dealt)
    object.__setattr__(elastic, "sampler", dealt)
    if elastic.num_workers:  # otherwise this process reads each batch when it is needed
        object.__setattr__(elastic, "dataset", SeededDataset(loader.dataset, loader.collate_fn))
    return elastic


def _without_state(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A plain loader with the options of, for example, a ``StatefulDataLoader``."""
    return DataLoader(
        loader.dataset,
        batch_sampler=loader.batch_sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def can_be_dealt(loader: object) -> bool:
    """Whether ``loader`` draws batches of indices, which can be distributed and skipped."""
    return (
        isinstance(loader, DataLoader)
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, IterableDataset)
    )


def main_process_reader(loader: Any) -> tuple[Any, ...]:
    """The reader of a loader's batches in this process, which may draw random numbers."""
    if isinstance(loader, Stateful) or getattr(loader, "num_workers", 0) > 0:
        return ()
    return getattr(loader, "dataset", loader), getattr(loader, "collate_fn", None)


def refuse_gangs(loader: object, world_size: int) -> None:
    """Refuse several slots for data that cannot be distributed.

    Raises:
        DeadlineError: There are several.
    """
    if world_size > 1:
        raise DeadlineError(
            f"The training data ({type(loader).__name__}) cannot be distributed to "
            f"{world_size} slots:"
            " pass a DataLoader over a map-style dataset, or let each trial have one slot:"
            " run(max_slots=1), or --max-slots 1."
        )


def warn_of_restarted(loaders: Sequence[object]) -> None:
    """Warn about several loaders, one of which cannot be distributed."""
    kinds = ", ".join(type(one).__name__ for one in loaders if not can_be_dealt(one))
    _log.warning(
        "One of the training loaders (%s) cannot be distributed, so all of them begin "
        "again where the"
        " trial comes back within an epoch, and train on some samples twice and on others not at"
        " all: pass DataLoaders over map-style datasets.",
        kinds,
    )


def warn_of_replay(loader: object) -> None:
    """Warn about data that can neither be distributed nor has a state."""
    _log.warning(
        "The training data (%s) is read again from an epoch's beginning when the trial comes back:"
        " exact if it yields the same again, and as slow as that reading. A loader with"
        " state_dict() and load_state_dict() goes on at its place.",
        type(loader).__name__,
    )
