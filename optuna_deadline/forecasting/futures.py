"""What a trial may yet report, drawn from what is known of its curve.

A draw keeps its place in the band: a trial that does better than nine of ten would at one step
does so at all of them. Trials share a part of their place, since what is wrong with a forecast of
one curve is wrong with its neighbours' too (our own rule; half of the variance is shared).

How far the best score of a study will rise: trials, newcomers and policy in one.

The best of what is forecast of each trial is no forecast of the best: it picks the errors that
flatter. So three things are measured that say how far apart scores are where the study is now: how
far the best trial is ahead of the best tenth of all, what the last doubling of the time has
brought to the best score, and what the last doubling of its steps has brought to the best trial.
Of each it is known how many times as much was still to come in studies of the project's own curves
(:data:`~optuna_deadline.forecasting.curve_priors.RISES`), and each has a third of the say. Our
own rule.
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


_FLOOR = 0.1  # of the lead, so that what stood still by chance may move again
_DRAWS = 40  # of each of the three; a twentieth of all is reported
_DOUBLINGS = [math.log2(1 / part) for part in RISES]  # of the time, until the deadline


def measures(curves: Collection[Curve], course: Curve, now: float) -> tuple[float, float, float]:
    """How far apart scores are: the lead, what came lately, and what came to the best trial.

    Args:
        curves: Of all trials with a score; there must be some.
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
    """The best score at an instant, at each of the levels; nowhere below what is in hand.

    Args:
        best: In hand.
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
    """Between which values scores can lie, as far as those that were seen tell.

    Accuracies and other shares lie from 0 to 1, losses above 0. Scores are larger-is-better, so
    that a loss is negative. A score outside of these lifts the limit. Our own rule.

    Returns:
        The lowest and the highest score, infinite where nothing limits them.
    """
    ends = [score for curve in curves for score in (curve.best[0], curve.best[-1])]
    if ends and min(ends) >= 0.0 and max(ends) <= 1.0:
        return 0.0, 1.0
    return -math.inf, 0.0 if ends and max(ends) <= 0.0 else math.inf


def times_ahead(measure: int, now: float, instant: float) -> list[float]:
    """How many times one of the three measures is still to come, at each of the levels.

    Linear in the doublings of the time, and beyond the last that was measured as before it.
    """
    ahead = max(0.0, math.log2(instant / now))
    known = [0.0, *_DOUBLINGS]
    rows = np.array([[0.0] * len(LEVELS), *(row[measure] for row in RISES.values())])
    above = min(max(1, int(np.searchsorted(known, ahead))), len(known) - 1)
    part = (ahead - known[above - 1]) / (known[above] - known[above - 1])
    times: list[float] = (rows[above - 1] + part * (rows[above] - rows[above - 1])).tolist()
    return times
