"""A loss that falls ever more slowly: SLAQ's model of methods that converge sublinearly.

``loss(k) = 1 / (a k^2 + b k + c) + d`` with ``a`` and ``b`` not negative, fitted by weighted least
squares in ``1 / (loss - d)``, in which it is linear, for several floors ``d``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Floors that are tried, as how many ranges of the losses they lie below the lowest.
_FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Decay:
    """A fitted loss."""

    a: float
    b: float
    c: float
    d: float

    def __call__(self, step: float) -> float:
        """The loss at a step."""
        return 1.0 / (self.a * step * step + self.b * step + self.c) + self.d

    def fall(self, step: float, more: float) -> float:
        """How far the loss falls in ``more`` steps from a step on."""
        return self(step) - self(step + more)


def fit_decay(steps: Sequence[float], losses: Sequence[float], memory: float) -> Decay | None:
    """The fit with the smallest squared error, None where nothing falls.

    Args:
        steps: Rising.
        losses: Finite.
        memory: Points from the end at which a point weighs half as much as the last.
    """
    if len(losses) < 3:
        return None
    k, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    low, reach = float(y.min()), float(y.max() - y.min())
    if reach <= 0:
        return None
    weights = 0.5 ** (np.arange(len(y))[::-1] / memory)
    best: tuple[float, Decay] | None = None
    for below in _FLOORS:
        floor = low - below * reach
        with np.errstate(all="ignore"):  # a loss may fall by less than a float can invert
            inverse = 1.0 / (y - floor)
            # An error of the loss weighs as the square of what it does to the inverse.
            found = _solve(k, inverse, np.sqrt(weights) / inverse**2)
        if found is None:
            continue
        fit = Decay(*found, floor)
        error = float(
            np.sum(weights * (1.0 / (found[0] * k * k + found[1] * k + found[2]) + floor - y) ** 2)
        )
        if best is None or error < best[0]:
            best = error, fit
    return best[1] if best else None


def _solve(
    k: NDArray[np.float64], inverse: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float, float] | None:
    """``a``, ``b``, ``c`` of which none is negative and whose curve is positive on all steps."""
    columns = np.stack([k * k, k, np.ones_like(k)], axis=1)
    from scipy.optimize import nnls  # half a second of every worker's start

    matrix, wanted = columns * weights[:, None], inverse * weights
    if not (np.isfinite(matrix).all() and np.isfinite(wanted).all()):
        return None
    solution, _ = nnls(matrix, wanted)
    a, b, c = (float(x) for x in solution)
    if a * k[0] ** 2 + b * k[0] + c <= 0:
        return None
    return a, b, c
