"""Values of either direction as scores, of which larger ones are better."""

from __future__ import annotations

import math


def score(value: float, direction: str) -> float:
    """The score of a value; applied to a score, the value again.

    Args:
        value: A reported value.
        direction: "minimize", which negates the value, or "maximize".
    """
    return value if direction == "maximize" else 0.0 - value  # of 0, not -0


class BestValue:
    """The best value of one trial so far, over all its segments.

    Args:
        direction: "minimize" or "maximize".

    Attributes:
        value: The best value; None before the first one.
    """

    def __init__(self, direction: str) -> None:
        self._direction = direction
        self.value: float | None = None

    def improved(self, value: float) -> bool:
        """Record a value; returns whether it is finite and better than all before."""
        before = self.value
        if not math.isfinite(value) or (
            before is not None and score(value, self._direction) <= score(before, self._direction)
        ):
            return False
        self.value = value
        return True
