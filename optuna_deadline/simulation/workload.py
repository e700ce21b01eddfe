"""What is to be tuned, as a value: for each configuration its learning curve and its pace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import median


@dataclass(frozen=True)
class Workload:
    """Configurations, each with its whole learning curve.

    Trial ``n`` trains configuration ``n`` modulo their number, whatever the policy: two policies
    see the same configurations in the same order, so their results can be paired.

    Attributes:
        name: For tables and logs.
        curves: By configuration, the score after each step; larger is better, NaN has diverged.
        step_seconds: By configuration, the seconds of a step on one slot.
    """

    name: str
    curves: tuple[tuple[float, ...], ...]
    step_seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.curves or len(self.curves) != len(self.step_seconds):
            raise ValueError("A workload needs a curve and a pace for each configuration.")
        if not all(self.curves) or not all(seconds > 0 for seconds in self.step_seconds):
            raise ValueError("A curve needs at least one step, and a step takes some time.")

    def configuration(self, number: int) -> int:
        """The configuration that a trial trains."""
        return number % len(self.curves)

    @cached_property
    def steps(self) -> int:
        """Steps of the longest training."""
        return max(len(curve) for curve in self.curves)

    @cached_property
    def best(self) -> float:
        """The best score of the best configuration at full training."""
        return max(self.peak(index) for index in range(len(self.curves)))

    def peak(self, configuration: int) -> float:
        """The best score of one configuration at full training."""
        return max(
            (score for score in self.curves[configuration] if not math.isnan(score)),
            default=-math.inf,
        )

    @cached_property
    def full_seconds(self) -> float:
        """Seconds of a whole training on one slot, in the middle of the configurations."""
        return median(
            len(curve) * seconds
            for curve, seconds in zip(self.curves, self.step_seconds, strict=True)
        )
