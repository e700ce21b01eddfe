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
    floors = low - np.array(_FLOORS)[:, None] * reach  # a row for each from here on
    with np.errstate(all="ignore"):  # a loss may fall by less than a float can invert
        inverse = 1.0 / (y - floors)
        # An error of the loss weighs as the square of what it does to the inverse.
        emphasis = np.sqrt(weights) / inverse**2
        shapes = _solve(k, inverse * emphasis, emphasis)
        a, b, c = shapes.T[:, :, None]
        missed = 1.0 / (a * k * k + b * k + c) + floors - y
        errors = np.sum(weights * missed**2, axis=1)
        positive = shapes @ (k[0] ** 2, k[0], 1.0) > 0  # and then on all steps
    errors = np.where(positive & np.isfinite(errors), errors, np.inf)
    best = int(np.argmin(errors))
    if np.isinf(errors[best]):
        return None
    a, b, c = map(float, shapes[best])
    return Decay(a, b, c, float(floors[best, 0]))


def _solve(
    k: NDArray[np.float64], wanted: NDArray[np.float64], emphasis: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``a``, ``b``, ``c`` of which none is negative, for each row; NaN where there are none."""
    from scipy.optimize import nnls  # half a second of every worker's start

    columns = np.stack([k * k, k, np.ones_like(k)], axis=1)
    matrices = columns * emphasis[:, :, None]
    found = np.full((len(wanted), 3), np.nan)
    finite = np.isfinite(matrices).all(axis=(1, 2)) & np.isfinite(wanted).all(axis=1)
    for row in np.flatnonzero(finite):
        found[row] = nnls(matrices[row], wanted[row])[0]
    return found
