"""What in a training is not bitwise equal to an uninterrupted training on one slot."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

_log = logging.getLogger("optuna_deadline")
_FEW_DIGITS = (torch.float16, torch.bfloat16)
_NAMED = 3  # layers of a kind


def differences(model: nn.Module, precision: str = "") -> list[tuple[int, str]]:
    """The differences, in sentences, each with a log level.

    Args:
        model: The bare model, in its training modes.
        precision: Lightning's name of it; empty if the parameters determine it.
    """
    kinds = {one.dtype for one in model.parameters()}
    low = precision or ", ".join(str(one) for one in _FEW_DIGITS if one in kinds)
    few = low and not low.startswith(("32", "64"))
    rounding = f"It rounds otherwise, in few digits with {low}." if few else "It rounds otherwise."
    drops = any(_drops(module) for module in model.modules())
    random = "Dropout and what else is" if drops else "What is"
    found = [
        (logging.INFO, rounding),
        (logging.INFO, f"{random} drawn at random draws other numbers of the same kind."),
        (logging.INFO, "What your own code keeps of a batch is of a slot's slice."),
    ]
    norms = [name or type(one).__name__ for name, one in model.named_modules() if _mixes(one)]
    if norms:
        more = f" and {len(norms) - _NAMED} more" if len(norms) > _NAMED else ""
        named = ", ".join(norms[:_NAMED]) + more
        found.append(
            (
                logging.WARNING,
                f"Norms over a batch ({named}) see a slot's slice of it: prefer GroupNorm or"
                " LayerNorm, or SyncBatchNorm on GPUs.",
            )
        )
    return found


def warn_of_differences(slots: int, model: nn.Module, precision: str = "") -> None:
    """Log the differences in one line; call before the first step."""
    found = differences(model, precision)
    level = max(level for level, _ in found)
    sentences = " ".join(sentence for _, sentence in found)
    _log.log(level, "This training on %d slots, compared with one: %s", slots, sentences)


def _drops(module: nn.Module) -> bool:
    share: Any = getattr(module, "p", 0.0) if isinstance(module, _DropoutNd) else 0.0
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        share = module.dropout
    return module.training and share > 0


def _mixes(module: nn.Module) -> bool:
    """Whether it computes over a batch, and not over each sample."""
    if not module.training or isinstance(module, nn.SyncBatchNorm):
        return False
    running = isinstance(module, _InstanceNorm) and module.track_running_stats
    return running or isinstance(module, _BatchNorm)
