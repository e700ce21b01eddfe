"""Curves of the best score so far, read in doublings of their steps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

_BEST = 0.9  # who is at least here among the others is of their best tenth


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

    @cached_property
    def usual_gain(self) -> float:
        """What a doubling has brought on the whole, if there was any."""
        return (self.best[-1] - self.best[0]) / self.doublings

    @cached_property
    def share(self) -> float | None:
        """The part of the last doubling in what the last two have brought, if they have."""
        if self.doublings < 2:
            return None
        end, half = self.best[-1], self.at(self.steps[-1] / 2)
        both = end - self.at(self.steps[-1] / 4)
        return (end - half) / both if both > 0 else None


def best_tenth(scores: Iterable[float]) -> float:
    """The score that one of ten comes to, or more; there must be some."""
    return float(np.quantile(list(scores), _BEST))
