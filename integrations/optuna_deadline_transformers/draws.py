"""Random numbers that depend on the position in the training.

The trainer's checkpoints hold the states of the generators. But a loader reads a batch ahead, and
its worker processes begin anew in each segment: a dataset that augments, or a collator that masks
tokens, would draw other numbers after a pause. So each epoch, batch and step has its own seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from optuna_deadline_torch.loaders import SeededDataset, can_be_dealt
from optuna_deadline_torch.sample_order import draws_otherwise
from optuna_deadline_torch.sampler import SeededIndices
from optuna_deadline_torch.seeding import READING, Generators, generators_of, reseed

from optuna_deadline_transformers.reports import whole_part

_LIBRARIES = {"torch", "accelerate", "transformers", "optuna_deadline_transformers"}
_ORDER, _STEP, _EPOCH, _EVALUATION = 2, 3, 4, 5  # last parts of seeds; a read has READING


class _EpochlessDataset(SeededDataset):
    """Lets no library set the epoch: where a training resumes within one, it sets the first."""

    def __getattr__(self, name: str) -> Any:
        if name == "set_epoch":
            raise AttributeError(name)
        return super().__getattr__(name)


def _sets_epoch(loader: Any) -> bool:
    """Whether accelerate sets the epoch of a loader's data, which has no sampler to set it of."""
    batches = loader.batch_sampler
    samplers = batches, getattr(batches, "sampler", None)
    return hasattr(loader.dataset, "set_epoch") and not any(
        hasattr(one, "set_epoch") for one in samplers
    )


def _within(batches: Any) -> Iterator[Any]:
    """A batch sampler, and those that it reads."""
    while batches is not None:
        yield batches
        batches = getattr(batches, "batch_sampler", None) or getattr(batches, "sampler", None)


def _is_librarys(sampler: Any) -> bool:
    return type(sampler).__module__.partition(".")[0] in _LIBRARIES


class SeededBatches:
    """A batch sampler whose batches are read with the random numbers of their place.

    Args:
        batches: The trainer's batch sampler.
        begin: Begins an epoch; returns its place.
    """

    def __init__(self, batches: Any, begin: Callable[[], tuple[int, ...]]) -> None:
        self._batches, self._begin = batches, begin

    def __iter__(self) -> Iterator[SeededIndices]:
        place = self._begin()
        for number, batch in enumerate(self._batches):
            mine = SeededIndices(batch)
            mine.parts = (*place, number, READING)
            yield mine

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:  # the trainer sets the epoch of what is within
        if name.startswith("__") or name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)


class SeededTraining:
    """Seeds a training's epochs, batches and steps.

    Args:
        seed: The seed of the training.
        rank: The rank of this process; each draws other numbers, but for the order of samples.
        loader: The trainer's loader.
        generators: Those of random numbers of the user's callbacks and trainer.

    Raises:
        DeadlineError: A sampler of the user's draws another order when it is asked again.
    """

    def __init__(self, seed: int, rank: int, loader: Any, generators: Generators) -> None:
        self._seed, self._rank, self._own = seed, rank, generators
        self._set_epoch: list[Callable[[int], Any]] = []
        self._epoch, self._epochs = 0, 0
        self._counts, self._cut, self._data = can_be_dealt(loader), False, loader.dataset
        if self._counts:
            own = getattr(loader, "base_dataloader", loader)  # within accelerate's
            if _sets_epoch(own):
                self._set_epoch.append(own.dataset.set_epoch)
            self._samplers = [*_within(own.batch_sampler)]
            for one in self._samplers:  # accelerate gives them one on several slots alone
                if getattr(one, "generator", self) is None:
                    one.generator = torch.Generator()
            users = [one for one in self._samplers if not _is_librarys(one)]
            self._set_epoch += [one.set_epoch for one in users if hasattr(one, "set_epoch")]
            batches = SeededBatches(own.batch_sampler, self._begin)
            # DataLoader forbids the assignment, because a running iterator would ignore it.
            object.__setattr__(own, "batch_sampler", batches)
            object.__setattr__(own, "dataset", _EpochlessDataset(own.dataset, own.collate_fn))
            if users and [*map(list, batches)] != [*map(list, batches)]:
                raise draws_otherwise(type(users[-1]).__name__)

    @property
    def lost_place(self) -> str:
        """Why the trainer could not resume from here; empty if it could."""
        if self._cut:
            return "a callback has ended an epoch early, and Trainer counts whole epochs"
        if self._counts or self._epochs < 2:
            return ""
        return (
            f"its training data ({type(self._data).__name__}) has ended once and has no length,"
            " so Trainer cannot find its place in a further pass. Pass data as long as the"
            " training, or with a length"
        )

    def end_epoch(self, state: Any) -> None:
        """Note an epoch that has ended early."""
        self._cut |= self._counts and not float(state.epoch).is_integer()

    def begin_epoch(self, state: Any) -> None:
        """Note the epoch; call before its first batch is read."""
        self._epoch = whole_part(state.epoch or 0.0)
        self._epochs += 1
        self._own.seed(self._seed, self._epoch, _EPOCH)

    def begin_step(self, state: Any) -> None:
        """Seed what a step draws."""
        reseed(self._seed, state.global_step, self._rank, _STEP, own=self._own)

    def begin_evaluation(self, state: Any) -> None:
        """Seed what the loader of an evaluation draws."""
        reseed(self._seed, state.global_step, _EVALUATION, own=self._own)

    def _begin(self) -> tuple[int, ...]:
        """Seed what draws the order: the trainer has restored other generators by now."""
        reseed(self._seed, self._epoch, _ORDER, own=generators_of(*self._samplers))
        for set_epoch in self._set_epoch:  # after a seed of ours
            set_epoch(self._epoch)
        return self._seed, self._epoch, self._rank
