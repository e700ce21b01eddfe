"""Which way is better, and the best value so far."""

from __future__ import annotations

import math
from typing import Any, Literal

from optuna_deadline.errors import DeadlineError

Direction = Literal["minimize", "maximize"]


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
    raise DeadlineError("Say which way is better: pass mode='min' or mode='max'.")


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
