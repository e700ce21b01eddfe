"""The training loader that a trainer is going to ask for, dealt to the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from optuna_deadline_torch.loaders import Deal, dealt_loader
from optuna_deadline_torch.sampler import ElasticBatchSampler


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
        loader = dealt_loader(ask(), deal, trainer.world_size)
        sampler = getattr(loader, "batch_sampler", None)
        if isinstance(sampler, ElasticBatchSampler):
            adopt(sampler)
        return loader

    source.dataloader = dealt  # type: ignore[method-assign]
