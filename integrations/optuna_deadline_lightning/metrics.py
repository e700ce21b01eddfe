"""The number that is reported, and the best one so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch

from optuna_deadline.errors import DeadlineError

Direction = Literal["minimize", "maximize"]


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


def direction_of(trial: Any, segment: Any, mode: str | None) -> Direction:
    """Which way is better: the worker's word, then the study's, then ``mode``.

    Raises:
        DeadlineError: Nobody knows.
    """
    said = getattr(segment, "direction", None)
    if said is None:
        said = getattr(getattr(trial, "study", None), "direction", None)
    word = str(getattr(said, "name", said) if said is not None else mode or "").lower()
    if word in ("min", "minimize"):
        return "minimize"
    if word in ("max", "maximize"):
        return "maximize"
    raise DeadlineError("Say which way is better: DeadlineCallback(..., mode='min' or 'max').")


class Best:
    """The best value so far of one trial, over all its segments."""

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
        self.value: float | None = None

    def improved(self, value: float) -> bool:
        """Take a value; whether it is finite and better than all before."""
        if not math.isfinite(value):
            return False
        sign = 1.0 if self.direction == "maximize" else -1.0
        if self.value is not None and sign * value <= sign * self.value:
            return False
        self.value = value
        return True
