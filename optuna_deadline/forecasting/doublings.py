"""How much a doubling of the steps brings, learned from all curves of a study.

Curves of the best score so far are read in doublings of the steps: each is taken to bring a share
of what the one before it brought, and how wrong that was on the parts of the study's own curves
that are known by now gives the band. Before there are such parts the errors on the project's own
recording stand in. The rule is ours; that errors which were made make an honest band is conformal
prediction (Vovk, Gammerman and Shafer, 2005), though curves of one study are not exchangeable.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import median

import numpy as np

from optuna_deadline.forecasting.prior import ERRORS, SHARE

#: Probabilities at which a forecast is told.
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)

_SHARES = 6  # so many curves of the study weigh as much as the prior
_ERRORS = 18  # and so many of its errors
_LARGEST_SHARE = 0.6  # a doubling brings at most half as much again as the last one
_STILL = 0.25  # of the usual gain: what a curve that stands still is granted at least
_LOOKS = 6  # places on one curve from which is looked ahead, evenly spread


@dataclass(frozen=True)
class Curve:
    """The best score so far after each report.

    Attributes:
        steps: Rising, above 0.
        best: Never falling.
    """

    steps: tuple[float, ...]
    best: tuple[float, ...]

    @classmethod
    def of(cls, steps: Sequence[float], scores: Sequence[float]) -> Curve | None:
        """From reports, larger is better; None where no score is finite."""
        points = [(k, s) for k, s in zip(steps, scores, strict=True) if math.isfinite(s) and k > 0]
        if not points:
            return None
        return cls(
            tuple([step for step, _ in points]),
            tuple(accumulate([score for _, score in points], max)),
        )

    def at(self, step: float) -> float:
        """The best score until a step, the first one's before it."""
        return self.best[max(0, bisect_right(self.steps, step) - 1)]

    def until(self, step: float) -> Curve:
        """As it was known at a step."""
        known = max(1, bisect_right(self.steps, step))
        return Curve(self.steps[:known], self.best[:known])

    @cached_property
    def doublings(self) -> float:
        """How often the steps have doubled since the first report."""
        return math.log2(self.steps[-1] / self.steps[0])

    def doublings_to(self, step: float) -> float:
        """How often the steps have yet to double until a step; 0 where it is behind."""
        return max(0.0, math.log2(step / self.steps[-1]))

    @cached_property
    def last_gain(self) -> float:
        """What the last doubling has brought; where there was less than one, at the same rate."""
        if not self.doublings:
            return 0.0
        gain = self.best[-1] - self.at(self.steps[-1] / 2)
        return gain / min(1.0, self.doublings)


@dataclass(frozen=True)
class Doublings:
    """What is known of a study's curves.

    Attributes:
        share: Of what two doublings bring, the part of the second one.
        usual: What a doubling brings, in the middle of the curves.
        errors: By the doublings ahead, from one on, and by level of :data:`LEVELS`: how far the
            truth lay above what was expected, in units of the doubling before.
    """

    share: float = SHARE
    usual: float = 0.0
    errors: tuple[tuple[float, ...], ...] = ERRORS

    def expect(self, curve: Curve, step: float) -> float:
        """The best score at a step, if every doubling brings its share."""
        ahead = curve.doublings_to(step)
        ratio = self.share / (1 - self.share)
        brings = ahead if ratio == 1 else ratio * (1 - ratio**ahead) / (1 - ratio)
        return curve.best[-1] + curve.last_gain * brings

    def unit(self, curve: Curve) -> float:
        """What errors are measured in."""
        return max(curve.last_gain, _STILL * self.usual)

    def quantiles(self, curve: Curve, step: float) -> tuple[float, ...]:
        """The best score at a step, at each of :data:`LEVELS`; nowhere below what is in hand."""
        middle, unit, best = self.expect(curve, step), self.unit(curve), curve.best[-1]
        errors = self._errors(curve.doublings_to(step))
        return tuple([max(best, middle + unit * error) for error in errors])

    def _errors(self, ahead: float) -> tuple[float, ...]:
        """Between the whole doublings by interpolation; below the first and beyond the last as
        the way of a random walk grows, beyond the last only upwards: a best score never falls."""
        known = self.errors
        if ahead <= 1:
            return tuple([math.sqrt(ahead) * error for error in known[0]])
        if ahead >= len(known):
            grown = math.sqrt(ahead / len(known))
            return tuple([max(error, grown * error) for error in known[-1]])
        below = int(ahead)
        part = ahead - below
        pairs = zip(known[below - 1], known[below], strict=True)
        return tuple([(1 - part) * near + part * far for near, far in pairs])


def learn_doublings(curves: Iterable[Curve]) -> Doublings:
    """Learn from all curves of a study as far as they are known, the shortest ones too."""
    known = [curve for curve in curves if curve.doublings > 0]
    usual = median([_gain(curve) for curve in known]) if known else 0.0
    shares = [share for curve in known if (share := _share(curve)) is not None]
    share = min(_LARGEST_SHARE, median([*shares, *[SHARE] * _SHARES]))
    plain = Doublings(share, usual)
    made = look_back(plain, known)
    errors = [_blend(own, prior) for own, prior in zip(made, ERRORS, strict=True)]
    return Doublings(share, usual, tuple(errors))


def look_back(model: Doublings, curves: Iterable[Curve]) -> list[list[float]]:
    """The errors that a model would have made on the known parts of curves.

    Returns:
        By the doublings ahead, as many as the model has errors of.
    """
    made: list[list[float]] = [[] for _ in model.errors]
    for curve in curves:
        for ahead, errors in enumerate(made, 1):
            latest = bisect_right(curve.steps, curve.steps[-1] / 2**ahead)
            for place in _spread(2, latest):
                then = Curve(curve.steps[:place], curve.best[:place])
                if unit := model.unit(then):
                    target = then.steps[-1] * 2**ahead
                    error = (curve.at(target) - model.expect(then, target)) / unit
                    errors.append(error)
    return made


def _spread(first: int, last: int) -> list[int]:
    """Some of the whole numbers of a range, both ends among them."""
    if last < first:
        return []
    return sorted({round(place) for place in np.linspace(first, last, _LOOKS).tolist()})


def _gain(curve: Curve) -> float:
    return (curve.best[-1] - curve.best[0]) / curve.doublings


def _share(curve: Curve) -> float | None:
    """The part of the last doubling in what the last two have brought."""
    if curve.doublings < 2:
        return None
    end, half = curve.best[-1], curve.at(curve.steps[-1] / 2)
    both = end - curve.at(curve.steps[-1] / 4)
    return (end - half) / both if both > 0 else None


def _blend(own: Sequence[float], prior: Sequence[float]) -> tuple[float, ...]:
    """The quantiles of a study's own errors and of some that are drawn evenly from the prior."""
    even = (np.arange(_ERRORS) + 0.5) / _ERRORS
    drawn = np.interp(even, LEVELS, prior)
    found = np.quantile(np.concatenate([np.asarray(own, dtype=float), drawn]), LEVELS)
    return tuple(found.tolist())
