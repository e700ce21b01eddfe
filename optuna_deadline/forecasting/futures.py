"""Forecasts of a trial's scores, and of the best score of a study.

A draw keeps its place in the band: a trial that is better than nine of ten at one step is so at
all steps. Trials share a part of their place, because an error in the forecast of one curve
repeats in its neighbours (our rule; half of the variance is shared).

The best of all trials' forecasts does not forecast the best, because it selects favourable errors.
So the rise of the best score is forecast as a whole, from three measures of the present spread:
how far the best trial is ahead of the best tenth, what the last doubling of the time has brought
to the best score, and what the last doubling of its steps has brought to the best trial. For each,
the factor of the further rise is known from simulated studies
(:data:`~optuna_deadline.forecasting.curve_priors.RISES`); each has a third of the weight. This is
our rule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from optuna_deadline.forecasting.curve_priors import LEVELS, RISES, from_quantiles, level_quantiles
from optuna_deadline.forecasting.learning_curves import Curve, Doublings, best_tenth

Array = NDArray[np.float64]

#: The share of the variance of a trial's place that all trials of a draw have in common.
SHARED = 0.5

_POINTS = 24  # steps at which the band is computed; between them it is interpolated


@dataclass(frozen=True, eq=False)
class Future:
    """The scores of a trial from its first report on: the past, and the band of the future.

    Attributes:
        known: The best score until each past report.
        band: The best score at each later report, a column for each of :data:`LEVELS`.
    """

    known: Array
    band: Array

    @classmethod
    def of(cls, curve: Curve, steps: Sequence[float], model: Doublings) -> Future:
        """The future of a curve.

        Args:
            curve: The known part.
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
        """All scores, at a place of the band between 0 and 1."""
        column = float(np.interp(place, LEVELS, np.arange(len(LEVELS))))
        below = min(int(column), len(LEVELS) - 2)
        part = column - below
        ahead = (1 - part) * self.band[:, below] + part * self.band[:, below + 1]
        scores: tuple[float, ...] = (*self.known.tolist(), *ahead.tolist())
        return scores


def draw_places(rng: np.random.Generator, count: int, shared: float = SHARED) -> list[float]:
    """Draw correlated quantiles for a number of trials, each uniform on (0, 1).

    Args:
        rng: The random generator.
        count: How many.
        shared: The share of their variance that they have in common.
    """
    common, own = rng.standard_normal(), rng.standard_normal(count)
    normal = NormalDist()
    mixed = shared**0.5 * common + (1 - shared) ** 0.5 * own
    return [normal.cdf(value) for value in mixed.tolist()]


_FLOOR = 0.1  # of the lead, so that a plateau by chance may end
_DRAWS = 40  # of each of the three; a twentieth is reported
_DOUBLINGS = [math.log2(1 / part) for part in RISES]  # of the time, until the deadline


def measures(curves: Collection[Curve], course: Curve, now: float) -> tuple[float, float, float]:
    """The three measures: the lead, the latest rise, and the latest rise of the best trial.

    Args:
        curves: Of all trials with a score, at least one.
        course: When the best score rose, in seconds since the study began, and to what.
        now: Seconds since the study began.
    """
    leader = max(curves, key=lambda curve: curve.best[-1])
    lead = leader.best[-1] - best_tenth(curve.best[-1] for curve in curves)
    lately = course.best[-1] - course.at(now / 2)
    return lead, max(lately, _FLOOR * lead), max(leader.last_gain, _FLOOR * lead)


def best_by(
    best: float, measured: Sequence[float], now: float, instant: float
) -> tuple[float, ...]:
    """The best score at an instant, at each of the levels; never below the present one.

    Args:
        best: The present best score.
        measured: The three :func:`measures`.
        now: Seconds since the study began.
        instant: Likewise; before ``now`` nothing rises.
    """
    rises = [
        unit * from_quantiles(times_ahead(one, now, instant), _DRAWS)
        for one, unit in enumerate(measured)
    ]
    return tuple([best + rise for rise in level_quantiles(np.concatenate(rises))])


def limits_of(curves: Iterable[Curve]) -> tuple[float, float]:
    """The limits of scores, as far as the observed ones suggest them.

    Accuracies and other shares are from 0 to 1, losses above 0. Scores are larger-is-better, so a
    loss is negative. A score outside of these removes the limit. Our rule.

    Returns:
        The lowest and the highest score, infinite without a limit.
    """
    ends = [score for curve in curves for score in (curve.best[0], curve.best[-1])]
    if ends and min(ends) >= 0.0 and max(ends) <= 1.0:
        return 0.0, 1.0
    return -math.inf, 0.0 if ends and max(ends) <= 0.0 else math.inf


def times_ahead(measure: int, now: float, instant: float) -> list[float]:
    """The factor of the further rise by one of the three measures, at each of the levels.

    Linear in the doublings of the time, and constant beyond the last measured one.
    """
    ahead = math.log2(max(1.0, instant / now))
    known = [0.0, *_DOUBLINGS]
    rows = np.array([[0.0] * len(LEVELS), *(row[measure] for row in RISES.values())])
    above = min(max(1, int(np.searchsorted(known, ahead))), len(known) - 1)
    part = (ahead - known[above - 1]) / (known[above] - known[above - 1])
    times: list[float] = (rows[above - 1] + part * (rows[above] - rows[above - 1])).tolist()
    return times
