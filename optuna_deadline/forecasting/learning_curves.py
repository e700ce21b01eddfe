"""Forecasts of learning curves by doublings of their steps.

Each doubling is assumed to bring a share of what the one before it brought. The errors of this
rule on the known parts of the study's own curves give the band. Errors of young and of older
curves are measured separately, relative to what a curve has gained lately or lags behind the best
ones, which it may catch up. Before a study has such errors, those on the project's own recording
are used. The rule is our reconstruction; bands from past errors are conformal prediction (Vovk,
Gammerman and Shafer, 2005), though curves of one study are not exchangeable.
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

from optuna_deadline.forecasting.curve_priors import ERRORS, SHARE, from_quantiles, level_quantiles

_BEST = 0.9  # a trial at or above this rank is among the best tenth
_SHARES = 6  # this many curves of the study weigh as much as the prior
_ERRORS = 18  # and this many of its errors
_LARGEST_SHARE = 0.6  # a doubling brings at most 1.5 times as much as the last one
_STILL = 0.25  # share of the usual gain that a plateau is assumed to gain
_YOUNG = 2.0  # a trial with fewer doublings is young
_LOOKS = 3  # positions on one curve at each age from which errors are measured, evenly spread


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
        """From reports, larger is better; None without a finite score."""
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
        """The curve as it was known at a step."""
        known = max(1, bisect_right(self.steps, step))
        return Curve(self.steps[:known], self.best[:known])

    @cached_property
    def doublings(self) -> float:
        """Doublings of the steps since the first report."""
        return math.log2(self.steps[-1] / self.steps[0])

    def doublings_to(self, step: float) -> float:
        """Doublings of the steps that are left until a step; 0 if it is past."""
        return max(0.0, math.log2(step / self.steps[-1]))

    @cached_property
    def last_gain(self) -> float:
        """The gain of the last doubling; at the same rate if there was less than one."""
        if not self.doublings:
            return 0.0
        gain = self.best[-1] - self.at(self.steps[-1] / 2)
        return gain / min(1.0, self.doublings)

    @cached_property
    def usual_gain(self) -> float:
        """The mean gain of a doubling, if there was any."""
        return (self.best[-1] - self.best[0]) / self.doublings

    @cached_property
    def share(self) -> float | None:
        """The share of the last doubling in the gain of the last two, if there was any."""
        if self.doublings < 2:
            return None
        end, half = self.best[-1], self.at(self.steps[-1] / 2)
        both = end - self.at(self.steps[-1] / 4)
        return (end - half) / both if both > 0 else None


def best_tenth(scores: Iterable[float]) -> float:
    """The score that one in ten reaches or exceeds; needs at least one score."""
    return float(np.quantile(list(scores), _BEST))


@dataclass(frozen=True)
class Doublings:
    """The model of a study's curves.

    Attributes:
        curves: The curves that it was learned from.
        share: The share of the second of two doublings in their gain.
    """

    curves: tuple[Curve, ...] = ()
    share: float = SHARE

    def expect(self, curve: Curve, step: float) -> float:
        """The best score at a step, if every doubling brings its share."""
        ahead = curve.doublings_to(step)
        ratio = self.share / (1 - self.share)
        brings = ahead if ratio == 1 else ratio * (1 - ratio**ahead) / (1 - ratio)
        return curve.best[-1] + curve.last_gain * brings

    def unit(self, curve: Curve) -> float:
        """Scale of the forecast's errors, in units of the value."""
        return max(curve.last_gain, _STILL * self.usual, self.lag(curve))

    def lag(self, curve: Curve) -> float:
        """A curve's distance behind the best tenth of those that came as far, at least 0."""
        step = curve.steps[-1]
        if step not in self._tenths:
            came = [one.at(step) for one in self.curves if one.steps[-1] >= step]
            self._tenths[step] = best_tenth(came) if came else -math.inf
        return max(0.0, self._tenths[step] - curve.best[-1])

    def quantiles(self, curve: Curve, step: float) -> tuple[float, ...]:
        """The best score at a step, at each of :data:`LEVELS`; never below the present one."""
        middle, unit, best = self.expect(curve, step), self.unit(curve), curve.best[-1]
        errors = _between(self.errors[_age(curve)], curve.doublings_to(step))
        return tuple([max(best, middle + unit * error) for error in errors])

    @cached_property
    def _tenths(self) -> dict[float, float]:
        return {}  # by step, computed when needed

    @cached_property
    def usual(self) -> float:
        """The gain of a doubling, the median over the curves."""
        return median([curve.usual_gain for curve in self.curves]) if self.curves else 0.0

    @cached_property
    def errors(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """By age, by the doublings ahead from one on, and by level: the truth minus the expected
        score, in units. The study's own errors, and some drawn from the prior's.
        """
        return tuple(
            [
                tuple(
                    [
                        level_quantiles(np.concatenate([own, from_quantiles(prior, _ERRORS)]))
                        for own, prior in zip(made, priors, strict=True)
                    ]
                )
                for made, priors in zip(self.look_back(), ERRORS, strict=True)
            ]
        )

    def look_back(self) -> list[list[list[float]]]:
        """The errors of this model on the known parts of its curves.

        Returns:
            By age, and by the doublings ahead, as many as the prior has.
        """
        made: list[list[list[float]]] = [[[] for _ in ages] for ages in ERRORS]
        for curve in self.curves:
            old = bisect_right(curve.steps, curve.steps[0] * 2**_YOUNG * (1 - 1e-9))
            for ahead in range(1, 1 + len(ERRORS[0])):
                latest = bisect_right(curve.steps, curve.steps[-1] / 2**ahead)
                for place in (*_spread(2, min(old, latest)), *_spread(max(2, old + 1), latest)):
                    then = Curve(curve.steps[:place], curve.best[:place])
                    if unit := self.unit(then):
                        target = then.steps[-1] * 2**ahead
                        error = (curve.at(target) - self.expect(then, target)) / unit
                        made[_age(then)][ahead - 1].append(error)
        return made


def learn_doublings(curves: Iterable[Curve]) -> Doublings:
    """Learn from the known parts of all curves of a study."""
    known = tuple([curve for curve in curves if curve.doublings > 0])
    shares = [curve.share for curve in known if curve.share is not None]
    return Doublings(known, min(_LARGEST_SHARE, median([*shares, *[SHARE] * _SHARES])))


def _age(curve: Curve) -> int:
    return int(curve.doublings >= _YOUNG * (1 - 1e-9))


def _between(known: tuple[tuple[float, ...], ...], ahead: float) -> tuple[float, ...]:
    """Interpolate between whole doublings; below the first and beyond the last, scale like a
    random walk, beyond the last only upwards: a best score never falls.
    """
    if ahead <= 1:
        return tuple([math.sqrt(ahead) * error for error in known[0]])
    if ahead >= len(known):
        grown = math.sqrt(ahead / len(known))
        return tuple([max(error, grown * error) for error in known[-1]])
    below = int(ahead)
    part = ahead - below
    pairs = zip(known[below - 1], known[below], strict=True)
    return tuple([(1 - part) * near + part * far for near, far in pairs])


def _spread(first: int, last: int) -> list[int]:
    """Some of the whole numbers of a range, both ends among them."""
    if last < first:
        return []
    return sorted({round(place) for place in np.linspace(first, last, _LOOKS).tolist()})
