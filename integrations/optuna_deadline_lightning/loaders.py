"""The user's training loader, dealt to the ranks and resumable in the middle of an epoch."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from optuna_deadline.errors import DeadlineError
from optuna_deadline_lightning.sampler import ElasticBatchSampler

_log = logging.getLogger(__name__)

Deal = Callable[[Any], ElasticBatchSampler]


def elastic_loader(loader: DataLoader[Any], deal: Deal) -> DataLoader[Any]:
    """A copy of ``loader`` whose batches are dealt to the ranks.

    Args:
        loader: A loader over a map-style dataset, with the global batch size.
        deal: Makes the elastic batch sampler from the loader's own.
    """
    if isinstance(loader.batch_sampler, ElasticBatchSampler):
        return loader
    if isinstance(loader.sampler, DistributedSampler):
        raise DeadlineError(
            "The training loader has a DistributedSampler already: leave it out,"
            " the callback deals each batch to the slots."
        )
    dealt = deal(loader.batch_sampler)
    elastic = copy.copy(loader)
    # A copy keeps the loader's class, collate function and workers; DataLoader itself forbids
    # the assignment, since changing the sampler under a running iterator would be lost.
    object.__setattr__(elastic, "batch_sampler", dealt)
    object.__setattr__(elastic, "sampler", dealt)
    return elastic


def can_be_dealt(loader: object) -> bool:
    """Whether ``loader`` draws batches of indices, which can be dealt and skipped."""
    return (
        isinstance(loader, DataLoader)
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, IterableDataset)
    )


def deal_training_loader(
    trainer: pl.Trainer, deal: Deal, adopt: Callable[[ElasticBatchSampler], None]
) -> None:
    """Make ``trainer`` deal whatever training loader it is going to ask for.

    Args:
        trainer: A trainer whose data is attached, before it asked for the training loader.
        deal: Makes the elastic batch sampler from the loader's own.
        adopt: Gets the sampler that is going to be used.
    """
    # The one place that sees loaders passed to `fit`, from the module and from a data module.
    source = trainer.fit_loop._data_source
    ask = source.dataloader

    def dealt() -> Any:
        loader = ask()
        if can_be_dealt(loader):
            elastic = elastic_loader(loader, deal)
            adopt(elastic.batch_sampler)  # type: ignore[arg-type]
            return elastic
        what = type(loader).__name__
        if trainer.world_size > 1:
            raise DeadlineError(
                f"The training data ({what}) cannot be dealt to {trainer.world_size} slots: pass"
                " one DataLoader over a map-style dataset, or allow one slot per trial."
            )
        _log.warning(
            "The training data (%s) cannot be resumed in the middle of an epoch:"
            " after a pause its samples come in a new order.",
            what,
        )
        return loader

    source.dataloader = dealt  # type: ignore[method-assign]
