"""The number that is reported, and what a checkpoint keeps of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from optuna_deadline.errors import DeadlineError


def monitored(metrics: Mapping[str, Any], monitor: str) -> float:
    """The monitored metric as a number, NaN included.

    Raises:
        DeadlineError: The metric is not logged, or is not one number; the message lists what is.
    """
    if monitor not in metrics:
        logged = ", ".join(sorted(metrics)) or "nothing"
        raise DeadlineError(
            f"No metric {monitor!r} is logged at the end of validation; logged: {logged}."
            f" Call self.log({monitor!r}, ...) in validation_step, or change monitor=."
        )
    try:
        return float(metrics[monitor])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DeadlineError(f"The metric {monitor!r} is not one number: {error}") from error


def plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are one number each, for a checkpoint that loads with weights_only."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) or (torch.is_tensor(value) and value.numel() == 1)
    }
