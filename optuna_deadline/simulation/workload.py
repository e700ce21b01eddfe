"""What is to be tuned, as a value: for each configuration its learning curve and its pace."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Workload:
    """Configurations, each with its whole learning curve.

    Trial ``n`` trains configuration ``n`` modulo their number, whatever the policy: two policies
    see the same configurations in the same order, so their results can be paired.

    Attributes:
        name: For tables and logs.
        curves: By configuration, the score of each report; larger is better, NaN has diverged.
        step_seconds: By configuration, the seconds of a step on one slot.
        hyperparameters: By configuration, where they are known; else empty.
        every: Steps from one report to the next; curves have a score for each report.
    """

    name: str
    curves: tuple[tuple[float, ...], ...]
    step_seconds: tuple[float, ...]
    hyperparameters: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    every: int = 1

    def __post_init__(self) -> None:
        if not self.curves or len(self.curves) != len(self.step_seconds):
            raise ValueError("A workload needs a curve and a pace for each configuration.")
        if not all(self.curves) or not all(seconds > 0 for seconds in self.step_seconds):
            raise ValueError("A curve needs at least one step, and a step takes some time.")
        if self.hyperparameters and len(self.hyperparameters) != len(self.curves):
            raise ValueError("Hyper-parameters are given for all configurations or for none.")

    def renamed(self, name: str) -> Workload:
        """The same under another name."""
        return replace(self, name=name)

    def shuffled(self, seed: int) -> Workload:
        """The same configurations in an order of the seed's: another study of the same table."""
        order = list(range(len(self.curves)))
        random.Random(f"{self.name} {seed}").shuffle(order)
        return replace(
            self,
            curves=tuple(self.curves[index] for index in order),
            step_seconds=tuple(self.step_seconds[index] for index in order),
            hyperparameters=tuple(self.hyperparameters[index] for index in order)
            if self.hyperparameters
            else (),
        )

    def configuration(self, number: int) -> int:
        """The configuration that a trial trains."""
        return number % len(self.curves)

    @cached_property
    def steps(self) -> int:
        """Steps of the longest training."""
        return self.every * max(len(curve) for curve in self.curves)

    @cached_property
    def best(self) -> float:
        """The best score of the best configuration at full training."""
        return max(self.peak(index) for index in range(len(self.curves)))

    def peak(self, configuration: int) -> float:
        """The best score of one configuration at full training."""
        curve = self.curves[configuration]
        if math.isnan(sum(curve)):
            curve = tuple([score for score in curve if not math.isnan(score)])
        return max(curve, default=-math.inf)

    @cached_property
    def full_seconds(self) -> float:
        """Seconds of a whole training on one slot, in the middle of the configurations."""
        return median(
            self.every * len(curve) * seconds
            for curve, seconds in zip(self.curves, self.step_seconds, strict=True)
        )
