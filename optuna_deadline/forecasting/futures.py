"""What a trial may yet report, drawn from what is known of its curve.

A draw keeps its place in the band: a trial that does better than nine of ten would at one step
does so at all of them. Trials share a part of their place, since what is wrong with a forecast of
one curve is wrong with its neighbours' too (our own rule; half of the variance is shared).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from optuna_deadline.forecasting.doublings import Doublings
from optuna_deadline.forecasting.learning_curves import Curve
from optuna_deadline.forecasting.levels import LEVELS

Array = NDArray[np.float64]

#: Of the variance of a trial's place in its band, the part that all trials of a draw share.
SHARED = 0.5

_POINTS = 24  # steps at which the band is worked out; between them it is interpolated


@dataclass(frozen=True, eq=False)
class Future:
    """The scores of a trial from its first report on: what was, and the band of what may come.

    Attributes:
        known: The best score until each report that is behind it.
        band: The best score at each later report, a column for each of :data:`LEVELS`.
    """

    known: Array
    band: Array

    @classmethod
    def of(cls, curve: Curve, steps: Sequence[float], model: Doublings) -> Future:
        """The future of a curve.

        Args:
            curve: As far as it is known.
            steps: Of all reports until the end of its training.
            model: Learned from all curves of the study.
        """
        all_ = np.asarray(steps, dtype=float)
        behind = all_[all_ <= curve.steps[-1]]
        ahead = all_[len(behind) :]
        places = np.searchsorted(np.asarray(curve.steps), behind, side="right") - 1
        known = np.asarray(curve.best)[np.maximum(places, 0)]
        if not len(ahead):
            return cls(known, np.empty((0, len(LEVELS))))
        looks = np.unique(np.geomspace(ahead[0], ahead[-1], min(_POINTS, len(ahead))))
        found = np.array([model.quantiles(curve, float(step)) for step in looks])
        band = np.stack([np.interp(ahead, looks, column) for column in found.T], axis=1)
        return cls(known, np.maximum.accumulate(band, axis=0))

    def draw(self, place: float) -> tuple[float, ...]:
        """All scores, if it goes on at a place of its band between 0 and 1."""
        column = float(np.interp(place, LEVELS, np.arange(len(LEVELS))))
        below = min(int(column), len(LEVELS) - 2)
        part = column - below
        ahead = (1 - part) * self.band[:, below] + part * self.band[:, below + 1]
        scores: tuple[float, ...] = (*self.known.tolist(), *ahead.tolist())
        return scores


def draw_places(rng: np.random.Generator, count: int, shared: float = SHARED) -> list[float]:
    """Places between 0 and 1 for so many trials, evenly spread for each of them.

    Args:
        rng: Randomness.
        count: How many.
        shared: The part of their variance that they have in common.
    """
    common, own = rng.standard_normal(), rng.standard_normal(count)
    normal = NormalDist()
    mixed = shared**0.5 * common + (1 - shared) ** 0.5 * own
    return [normal.cdf(value) for value in mixed.tolist()]
