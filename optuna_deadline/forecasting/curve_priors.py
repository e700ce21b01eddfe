"""Priors of learning curves before a study has any, as quantiles at fixed levels.

They are measured on ``benchmarks/tables/digits.npz``, small networks on handwritten digits, and on
simulated studies of that recording and of the generated families. The tests compute them again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: The share of the second of two doublings in their gain, the median.
SHARE = 0.31

# Of young curves; the recording is too short for older ones three doublings ahead.
_THREE = (-0.58, -0.54, -0.44, -0.1, 0.2, 0.78, 0.9)

#: The errors of :class:`~optuna_deadline.forecasting.learning_curves.Doublings` for young curves
#: and for older ones, one, two and three doublings ahead, by level.
ERRORS = (
    (
        (-0.37, -0.34, -0.28, -0.07, 0.09, 0.33, 0.41),
        (-0.51, -0.48, -0.39, -0.09, 0.19, 0.62, 0.72),
        _THREE,
    ),
    (
        (-0.34, -0.27, -0.12, 0.0, 0.17, 0.36, 0.47),
        (-0.37, -0.28, -0.15, 0.0, 0.26, 0.58, 0.78),
        _THREE,
    ),
)

#: By the share of the time that has passed, by which factor each of the three
#: :func:`~optuna_deadline.forecasting.futures.measures` the best score of a study rose until its
#: deadline, at each level: ``python -m benchmarks.rises``.
RISES: dict[float, tuple[tuple[float, ...], ...]] = {
    0.875: (
        (0.00, 0.00, 0.00, 0.01, 0.06, 0.12, 0.17),
        (0.00, 0.00, 0.00, 0.05, 0.20, 0.39, 0.71),
        (0.00, 0.00, 0.00, 0.06, 0.27, 0.50, 0.77),
    ),
    0.75: (
        (0.00, 0.00, 0.00, 0.06, 0.18, 0.24, 0.36),
        (0.00, 0.00, 0.00, 0.19, 0.48, 1.46, 2.07),
        (0.00, 0.00, 0.00, 0.31, 0.61, 1.19, 1.85),
    ),
    0.5: (
        (0.00, 0.00, 0.05, 0.22, 0.36, 0.61, 0.80),
        (0.00, 0.04, 0.19, 0.55, 1.22, 2.52, 3.70),
        (0.00, 0.04, 0.29, 0.61, 1.05, 1.83, 3.00),
    ),
    0.25: (
        (0.08, 0.14, 0.28, 0.44, 0.80, 1.37, 1.97),
        (0.15, 0.26, 0.57, 1.18, 2.00, 4.47, 9.00),
        (0.17, 0.30, 0.57, 1.03, 1.64, 3.97, 7.02),
    ),
    0.125: (
        (0.21, 0.31, 0.50, 1.00, 1.99, 4.47, 6.00),
        (0.24, 0.33, 0.78, 1.42, 2.69, 5.56, 12.58),
        (0.28, 0.39, 0.89, 1.39, 2.33, 8.03, 16.19),
    ),
}

#: Probabilities of the quantiles that make a forecast.
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def from_quantiles(quantiles: Sequence[float], count: int) -> NDArray[np.float64]:
    """So many values, evenly spread over quantiles at :data:`LEVELS`; none is outside of them."""
    even = (np.arange(count) + 0.5) / count
    return np.interp(even, LEVELS, quantiles)


def level_quantiles(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, ...]:
    """The quantiles of values at :data:`LEVELS`."""
    found: list[float] = np.quantile(np.asarray(values, dtype=float), LEVELS).tolist()
    return tuple(found)
