"""A trainer's training data, distributed to the ranks or read up to the position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import CombinedLoader
from optuna_deadline_torch.loaders import (
    Deal,
    Place,
    ReplayedLoader,
    ResumableLoader,
    Stateful,
    can_be_dealt,
    elastic_loader,
    main_process_reader,
    refuse_gangs,
    warn_of_replay,
    warn_of_restarted,
)
from optuna_deadline_torch.sampler import ElasticBatchSampler
from optuna_deadline_torch.seeding import Generators, seeded

from optuna_deadline.errors import DeadlineError


class TrainingData:
    """Makes a trainer use the user's training data from the position of the training.

    Args:
        deal: Makes the elastic batch sampler from a loader's own.
        adopt: Gets the samplers that will be used.
        place: The position of the training.
        seed: Seeds the random numbers of a read, by epoch and batch.
    """

    def __init__(
        self,
        deal: Deal,
        adopt: Callable[[Sequence[ElasticBatchSampler]], None],
        place: Place,
        seed: Callable[[int, int], None],
    ) -> None:
        self._deal = deal
        self._adopt = adopt
        self._place = place
        self._seed = seed
        self._limit: int | None = None  # of an epoch, in batches
        self.generators = Generators()  #: of the data, modules and callbacks, which are seeded too

    def attach(self, trainer: pl.Trainer, before_request: Callable[[], None]) -> None:
        """Take over the data of a trainer that has it attached and has not asked for it yet.

        Args:
            trainer: The trainer.
            before_request: Called before the data is requested.

        Raises:
            DeadlineError: Lightning would change the data itself.
        """
        if getattr(trainer, "overfit_batches", 0) > 0:
            raise DeadlineError(
                "overfit_batches changes the training loader's order, which a trial "
                "needs to return"
                " to its position: pass limit_train_batches=N and a loader with shuffle=False to"
                " train on the same N batches in each epoch."
            )
        limit = trainer.limit_train_batches
        self._limit = limit if type(limit) is int else None
        # The one place that sees loaders passed to `fit`, from the module and from a data module.
        source = trainer.fit_loop._data_source
        ask = source.dataloader

        def request() -> Any:
            before_request()
            return self._on_data_requested(ask(), trainer)

        source.dataloader = request  # type: ignore[method-assign]

    def _on_data_requested(self, data: Any, trainer: pl.Trainer) -> Any:
        led = self.wrap(data, trainer.world_size)
        readers = (one for leaf in _leaves(led) for one in main_process_reader(leaf))
        users = trainer.lightning_module, getattr(trainer, "datamodule", None)
        # The last callback is this package's own.
        callbacks: list[Any] = trainer.callbacks[:-1]  # type: ignore[attr-defined]
        self.generators = Generators(*readers, *users, *callbacks)
        return led

    def wrap(self, data: Any, world_size: int) -> Any:
        """The data that replaces the user's.

        Raises:
            DeadlineError: It cannot be distributed, and there are several ranks.
        """
        leaves = _leaves(data)
        if all(map(can_be_dealt, leaves)):
            samplers: list[ElasticBatchSampler] = []
            dealt = _mapped(data, lambda leaf: self._dealt(leaf, samplers))
            if len(leaves) > 1:
                cycles = getattr(data, "_mode", "max_size_cycle") == "max_size_cycle"
                for sampler in samplers:
                    sampler.cycles = cycles
            self._adopt(samplers)
            return dealt
        refuse_gangs(data, world_size)
        if isinstance(data, Stateful):
            return ResumableLoader(data, self._place)
        if len(leaves) > 1:  # Lightning starts these itself, each in its own way
            warn_of_restarted(leaves)
            return data
        warn_of_replay(data)
        return ReplayedLoader(data, self._place, self._seed)

    def _dealt(self, leaf: Any, samplers: list[ElasticBatchSampler]) -> Any:
        loader = elastic_loader(leaf, self._deal)
        sampler: Any = loader.batch_sampler
        sampler.limit = self._limit
        samplers.append(sampler)
        return loader


class LoaderRequests:
    """Seeds each request for a loader by trial, loader and epoch.

    A ``train_dataloader`` or ``val_dataloader`` that draws, such as a random split, then returns
    the same data in each segment, and under plain Optuna.

    Args:
        trainer: The trainer, which has not asked for data yet.
        seed: Parts of each seed.
    """

    def __init__(self, trainer: pl.Trainer, *seed: int) -> None:
        fit: Any = trainer.fit_loop
        self._trainer = trainer
        self._seed = seed
        self._loops = [
            (fit, "_last_train_dl_reload_epoch"),
            (fit.epoch_loop.val_loop, "_last_val_dl_reload_epoch"),
        ]
        self._saved: list[int | None] = []
        self._first = [True, True]
        for kind, (loop, _) in enumerate(self._loops):
            source: Any = loop._data_source
            ask = getattr(source.dataloader, "asks", source.dataloader)  # of a former fit
            source.dataloader = partial(self._ask, ask, kind)
            source.dataloader.asks = ask

    def _ask(self, ask: Callable[[], Any], kind: int) -> Any:
        epoch = self._trainer.current_epoch
        if not self._trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]
            epoch = 0
        elif self._saved and self._first[kind]:  # the loader that was in use
            epoch = self._saved[kind] or 0
        self._first[kind] = False
        now = self._trainer.fit_loop.epoch_progress.current
        before, now.completed = now.completed, epoch  # what the loader was made by
        try:
            with seeded(*self._seed, kind, epoch):
                return ask()
        finally:
            now.completed = before

    def state(self) -> list[int | None]:
        """The epochs of the last requests."""
        epochs = [getattr(loop, name) for loop, name in self._loops]
        return [None if epoch == -math.inf else epoch for epoch in epochs]

    def load(self, saved: list[int | None]) -> None:
        """Restore :meth:`state`, before the first request."""
        self._saved = saved

    def resume(self) -> None:
        """Count from the last requests, and not from those of this segment's start."""
        for (loop, name), epoch in zip(self._loops, self._saved, strict=False):
            if epoch is not None:
                setattr(loop, name, epoch)


def _leaves(data: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(data, found.append)
    return found


def _mapped(data: Any, change: Callable[[Any], Any]) -> Any:
    """Loaders in the same dicts, lists and combinations."""
    if isinstance(data, CombinedLoader):
        return CombinedLoader(_mapped(data.iterables, change), data._mode)
    if type(data) is dict:
        return {name: _mapped(part, change) for name, part in data.items()}
    if type(data) in (list, tuple):
        return type(data)(_mapped(part, change) for part in data)
    return change(data)
