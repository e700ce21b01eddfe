"""Values of either direction as scores, of which larger ones are better."""

from __future__ import annotations


def score(value: float, direction: str) -> float:
    """The score of a value; applied to a score, the value again.

    Args:
        value: A reported value.
        direction: "minimize", which negates the value, or "maximize".
    """
    return value if direction == "maximize" else -value
