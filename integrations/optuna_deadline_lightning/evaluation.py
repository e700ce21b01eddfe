"""Evaluation as on one slot: every rank sees all of the data, so nothing is combined."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DistributedSampler

from optuna_deadline.errors import DeadlineError

_log = logging.getLogger(__name__)
_COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather",
    "gather_object",
)
_LIBRARIES = {
    "torch",
    "torchmetrics",
    "lightning",
    "optuna_deadline_lightning",
    "optuna_deadline_torch",
}


def evaluating(trainer: pl.Trainer) -> bool:
    """Whether the current data is for validation or a test."""
    return trainer.evaluating or trainer.sanity_checking


def evaluate_alone(trainer: pl.Trainer) -> None:
    """Let each rank of a trainer evaluate as one slot does; call in ``setup``.

    Values that a module logs with ``sync_dist=True`` in validation, or gathers by
    ``self.all_gather``, are then its own, as on one slot. A sum over ranks would count each sample
    once for each rank.
    """
    if trainer.world_size == 1 or "reduce" in vars(trainer.strategy):
        return
    strategy: Any = trainer.strategy
    reduce, gather, decide = strategy.reduce, strategy.all_gather, strategy.reduce_boolean_decision
    deciding = False

    def reduced(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        alone = evaluating(trainer) and not deciding
        return tensor if alone else reduce(tensor, *args, **kwargs)

    def gathered(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if evaluating(trainer):
            return tensor
        whole: torch.Tensor = gather(tensor, *args, **kwargs)
        return whole

    def decided(*args: Any, **kwargs: Any) -> bool:  # as callbacks do in on_validation_end
        nonlocal deciding
        deciding = True
        try:
            return bool(decide(*args, **kwargs))
        finally:
            deciding = False

    strategy.reduce, strategy.all_gather = reduced, gathered
    strategy.reduce_boolean_decision = decided
    for name in _COLLECTIVES:
        setattr(dist, name, _watched(trainer, getattr(dist, name)))
    loops = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop)
    for loop in loops:
        _look_at_data(loop._data_source)


def _watched(trainer: pl.Trainer, collective: Callable[..., Any]) -> Callable[..., Any]:
    """Warn once if the user's own code combines evaluated values."""
    warned = False

    @functools.wraps(collective)
    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal warned
        if not warned and evaluating(trainer):
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            warned = caller.partition(".")[0] not in _LIBRARIES
            if warned and trainer.is_global_zero:
                _log.warning(
                    "%s calls torch.distributed.%s in validation, where every slot sees all of the"
                    " data: a sum over the slots counts it %d times. Leave it out.",
                    caller,
                    collective.__name__,
                    trainer.world_size,
                )
        return collective(*args, **kwargs)

    return watched


def _look_at_data(source: Any) -> None:
    ask = source.dataloader

    def whole() -> Any:
        data = ask()
        for loader in CombinedLoader(data, "sequential").flattened:
            _refuse_divided(loader)
        return data

    source.dataloader = whole


def _refuse_divided(loader: Any) -> None:
    samplers = (
        getattr(loader, "sampler", None),
        getattr(getattr(loader, "batch_sampler", None), "sampler", None),
    )
    if any(isinstance(one, DistributedSampler) and one.num_replicas > 1 for one in samplers):
        raise DeadlineError(
            "The validation loader has a DistributedSampler, which gives each slot a part of the"
            " data: leave it out, every slot evaluates the whole validation set, so that a value"
            " does not depend on how many there are."
        )
