"""What is told of something uncertain: its quantiles at a few levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Probabilities at which a forecast is told.
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def drawn(told: Sequence[float], count: int) -> NDArray[np.float64]:
    """So many values, evenly from what was told; beyond its ends none."""
    even = (np.arange(count) + 0.5) / count
    return np.interp(even, LEVELS, told)


def told(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, ...]:
    """The quantiles of values at :data:`LEVELS`."""
    found: list[float] = np.quantile(np.asarray(values, dtype=float), LEVELS).tolist()
    return tuple(found)
