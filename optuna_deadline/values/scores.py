"""Values of either direction as scores, of which larger ones are better."""

from __future__ import annotations

import math


def score(value: float, direction: str) -> float:
    """The score of a value; applied to a score, the value again.

    Args:
        value: A reported value.
        direction: "minimize", which negates the value, or "maximize".
    """
    return value if direction == "maximize" else -value


def better_score(value: float, best: float | None, direction: str) -> float | None:
    """The score of a value if it is better than the best score so far, else None.

    Args:
        value: A reported value; NaN never is better.
        best: The best score, or None if there is none.
        direction: "minimize" or "maximize".
    """
    if math.isnan(value):
        return None
    found = score(value, direction)
    return found if best is None or found > best else None
