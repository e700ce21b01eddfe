"""Workloads: the learning curve and pace of each configuration, and generated families.

Scores of generated families are between 0 and 1; larger is better. The constants give each family
its shape and are fitted to no data. Noise is part of the curve, so that a step of a configuration
has the same score under every policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TrainingClock:
    """The seconds of one training on one slot, by step, if its reports take different times."""

    steps: Array
    seconds: Array

    def at(self, step: float) -> float:
        """Seconds from the start to a step."""
        return float(np.interp(step, self.steps, self.seconds))

    def reached(self, seconds: float) -> float:
        """The step after a number of seconds."""
        return float(np.interp(seconds, self.seconds, self.steps))


@dataclass(frozen=True)
class Workload:
    """Configurations with their whole learning curves.

    Trial ``n`` trains configuration ``n`` modulo their number under every policy. Two policies see
    the same configurations in the same order, so their results can be paired.

    Attributes:
        name: For tables and logs.
        curves: By configuration, the score of each report; larger is better, NaN is diverged.
        step_seconds: By configuration, the mean seconds of a step on one slot.
        hyperparameters: By configuration; empty if unknown.
        every: Steps from one report to the next; curves have a score for each report.
        report_seconds: By configuration, the seconds to each report from the one before; empty if
            all steps take as long.
    """

    name: str
    curves: tuple[tuple[float, ...], ...]
    step_seconds: tuple[float, ...]
    hyperparameters: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    every: int = 1
    report_seconds: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.curves or len(self.curves) != len(self.step_seconds):
            raise ValueError("A workload needs a curve and a pace for each configuration.")
        if not all(self.curves) or not all(seconds > 0 for seconds in self.step_seconds):
            raise ValueError("A curve needs at least one step, and a step takes some time.")
        if self.report_seconds and [*map(len, self.report_seconds)] != [*map(len, self.curves)]:
            raise ValueError(
                "Seconds are given for each report of each configuration or for none."
            )
        if self.hyperparameters and len(self.hyperparameters) != len(self.curves):
            raise ValueError("Hyper-parameters are given for all configurations or for none.")

    def params(self, configuration: int) -> Mapping[str, Any]:
        """The parameters of a configuration; its index if they are unknown."""
        if self.hyperparameters:
            return self.hyperparameters[configuration]
        return {"configuration": configuration}

    def configuration_with(self, params: Mapping[str, Any]) -> int:
        """The configuration with these parameters; the first one that has the given ones.

        Raises:
            ValueError: There is none.
        """
        for index in range(len(self.curves)):
            known = self.params(index)
            if all(name in known and known[name] == params[name] for name in params):
                return index
        raise ValueError(f"The workload {self.name!r} has no configuration with {params!r}.")

    def renamed(self, name: str) -> Workload:
        """This workload under another name."""
        return replace(self, name=name)

    def shuffled(self, seed: int) -> Workload:
        """These configurations in an order drawn from the seed: another study of the table."""
        order = list(range(len(self.curves)))
        random.Random(f"{self.name} {seed}").shuffle(order)
        return self.arranged(order)

    def arranged(self, order: Sequence[int]) -> Workload:
        """These configurations in an order."""
        return replace(
            self,
            curves=tuple(self.curves[index] for index in order),
            step_seconds=tuple(self.step_seconds[index] for index in order),
            hyperparameters=tuple(self.hyperparameters[i] for i in order if self.hyperparameters),
            report_seconds=tuple(self.report_seconds[i] for i in order if self.report_seconds),
        )

    def slowed(self, factor: float) -> Workload:
        """These trainings, each longer by a factor."""
        return replace(
            self,
            step_seconds=tuple(factor * seconds for seconds in self.step_seconds),
            report_seconds=tuple(
                tuple(factor * seconds for seconds in row) for row in self.report_seconds
            ),
        )

    def clock(self, configuration: int) -> TrainingClock | None:
        """The clock of one training; None if all its steps take as long."""
        if not self.report_seconds:
            return None
        seconds = np.cumsum([0.0, *self.report_seconds[configuration]])
        return TrainingClock(self.every * np.arange(len(seconds), dtype=float), seconds)

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
        """Seconds of a full training on one slot, the median over the configurations."""
        return median(
            self.every * len(curve) * seconds
            for curve, seconds in zip(self.curves, self.step_seconds, strict=True)
        )


Family = Callable[[np.random.Generator, int, Array], Array]


def generate(
    family: str,
    seed: int,
    *,
    configurations: int = 1024,
    steps: int = 81,
    step_seconds: float = 10.0,
    spread: float = 0.2,
) -> Workload:
    """Draw a workload.

    Args:
        family: One of :data:`FAMILIES`.
        seed: The same seed draws the same workload.
        configurations: How many there are.
        steps: Steps of a whole training.
        step_seconds: Median seconds of a step on one slot.
        spread: Of the logarithm of the seconds of a step over the configurations.

    Raises:
        ValueError: There is no such family.
    """
    if family not in FAMILIES:
        raise ValueError(f"There is no family {family!r}; there are {', '.join(FAMILIES)}.")
    rng = np.random.default_rng([seed, *family.encode()])
    scores = FAMILIES[family](rng, configurations, np.arange(1.0, steps + 1))
    seconds = step_seconds * np.exp(rng.normal(0.0, spread, configurations))
    if family in COST_OF_QUALITY:
        place = np.argsort(np.argsort(scores[:, -1])) + 0.5
        normal = np.array([*map(NormalDist().inv_cdf, place / configurations)])
        seconds *= np.exp(COST_OF_QUALITY[family] * normal)
    curves = tuple(tuple(row) for row in scores.tolist())
    return Workload(family, curves, tuple(seconds.tolist()))


def power_law(rng: np.random.Generator, count: int, steps: Array) -> Array:
    """An error that falls as a power of the steps towards a floor of its own.

    Floor, height and exponent are independent, so early ranks say something and not all.
    """
    floor = rng.beta(2, 5, (count, 1)) * 0.5
    height = rng.uniform(0.3, 0.5, (count, 1))
    exponent = rng.uniform(0.2, 1.0, (count, 1))
    return _noisy(rng, 1.0 - floor - height * steps**-exponent)


def crossing(rng: np.random.Generator, count: int, steps: Array) -> Array:
    """Saturating curves where better ones are slower, so that early ranks mislead."""
    top = rng.uniform(0.5, 0.95, (count, 1))
    slowness = (top - 0.5) / 0.45 + rng.normal(0.0, 0.15, (count, 1))
    scale = len(steps) * 0.02 * np.exp(2.5 * slowness)
    return _noisy(rng, top * (1.0 - np.exp(-steps / scale)))


def climbing(rng: np.random.Generator, count: int, steps: Array) -> Array:
    """Accuracies that rise from chance to different tops, the higher ones more slowly.

    Like image classifiers; the last three quarters of a training still gain several points.
    """
    top = 0.95 - 0.4 * rng.beta(1.2, 3.0, (count, 1))
    slowness = 4.0 * (top - 0.8) + rng.normal(0.0, 0.5, (count, 1))
    scale = len(steps) * 0.03 * np.exp(slowness)
    exponent = rng.uniform(0.6, 1.2, (count, 1))
    return _noisy(rng, top - (top - 0.1) * (1.0 + steps / scale) ** -exponent)


def slow_and_best(rng: np.random.Generator, count: int, steps: Array) -> Array:
    """Curves as of large and small models: the larger, the better at the end and the slower.

    All rise as fast by steps, and better ones fall behind by time: see :data:`COST_OF_QUALITY`.
    """
    top = rng.normal(0.8, 0.06, (count, 1))
    scale = len(steps) * 0.05 * np.exp(rng.normal(0.0, 0.5, (count, 1)))
    exponent = rng.uniform(0.5, 1.0, (count, 1))
    return _noisy(rng, top - (top - 0.2) * (1.0 + steps / scale) ** -exponent)


def plateau_then_drop(rng: np.random.Generator, count: int, steps: Array) -> Array:
    """Curves with a plateau until the error drops a second time, as after a cut of the rate."""
    early = rng.uniform(0.3, 0.5, (count, 1))
    gain = rng.uniform(0.0, 0.4, (count, 1))
    drop = rng.uniform(0.2, 0.7, (count, 1)) * len(steps)
    rise = early * (1.0 - np.exp(-steps / (0.05 * len(steps))))
    return _noisy(rng, rise + gain / (1.0 + np.exp(-(steps - drop) / (0.02 * len(steps)))))


def diverging(rng: np.random.Generator, count: int, steps: Array) -> Array:
    """Power laws of which 40 % diverge and report NaN, the faster ones more often."""
    scores = power_law(rng, count, steps)
    early = scores[:, : max(1, len(steps) // 20)].mean(axis=1)
    risk = 0.8 * np.argsort(np.argsort(early)) / max(1, count - 1)
    breaks = np.where(rng.random(count) < risk, rng.uniform(0.1, 1.0, count), np.inf) * len(steps)
    return np.where(steps < breaks[:, None], scores, np.nan)


def toy(rng: np.random.Generator, count: int, steps: Array) -> Array:
    """The toy of HyperSched's repository, in which long training matters little.

    ``loss(k) = 1 / (b0 * k / 100 + 0.1 * b1 + 0.5) + 0.01 * b2 + |N(0, 0.005)|``, with ``b0`` from
    an exponential distribution of mean 0.1, ``b1`` and ``b2`` uniform; the score is
    ``(2 - loss) / 2``.
    """
    b0 = rng.exponential(0.1, (count, 1))
    b1, b2 = rng.random((count, 1)), rng.random((count, 1))
    noise = np.abs(rng.normal(0.0, 0.005, (count, len(steps))))
    loss = 1.0 / (b0 * steps / 100 + 0.1 * b1 + 0.5) + 0.01 * b2 + noise
    return np.asarray((2.0 - loss) / 2)


def _noisy(rng: np.random.Generator, scores: Array) -> Array:
    return scores + rng.normal(0.0, 0.003, scores.shape)


#: The families by name.
FAMILIES: dict[str, Family] = {
    "power-law": power_law,
    "crossing": crossing,
    "climbing": climbing,
    "slow-and-best": slow_and_best,
    "plateau-then-drop": plateau_then_drop,
    "diverging": diverging,
    "toy": toy,
}

#: Families whose steps take longer, the better the configuration is at its end: the logarithm of
#: the seconds per standard deviation of the final rank.
COST_OF_QUALITY: dict[str, float] = {"slow-and-best": 0.7}
