"""AdaScale's gain: how many base-batch steps one step over several batches is worth.

After Johnson et al., "AdaScale SGD" (2020). If the gradients of the ranks differ much, averaging k
of them removes noise, and the step may be k times as long. If they agree, it may not be longer
than one of them. So the gain is from 1 to k.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

_LEAST = 1e-6  # added to the variance, so that the gain is defined without any
_MEMORY = 1000  # base batches over which the averages are taken


class AdaScaleGain:
    """The variance of a base batch's gradient, and the square of its mean.

    Attributes:
        variance: The moving average of the variance; None before the first measurement.
        square: The moving average of the squared mean.
    """

    def __init__(self) -> None:
        self.variance: float | None = None
        self.square = 0.0

    def measure(self, local_square: float, mean_square: float, ranks: int) -> None:
        """Take one step's measurement.

        Args:
            local_square: The mean over the ranks of each one's squared gradient norm.
            mean_square: The squared norm of their mean.
            ranks: How many they are, two at least, each with one base batch.
        """
        if not (math.isfinite(local_square) and math.isfinite(mean_square)):
            return  # a diverged step does not predict the next
        variance = ranks / (ranks - 1) * (local_square - mean_square)
        square = mean_square - variance / ranks
        keep = max(1.0 - ranks / _MEMORY, 0.0)
        self.variance = keep * (self.variance or 0.0) + (1 - keep) * variance
        self.square = keep * self.square + (1 - keep) * square

    def of(self, growth: int) -> float:
        """The gain of a step over ``growth`` base batches: from 1 to ``growth``."""
        if growth == 1 or self.variance is None:
            return 1.0
        # One measurement may be negative; the averages are unbiased because only they are clipped.
        variance, square = max(self.variance, _LEAST), max(self.square, 0.0)
        gain = (variance + square) / (variance / growth + square)
        return min(max(gain, 1.0), float(growth))

    def state(self) -> dict[str, Any]:
        """The state for the next segment."""
        return {"variance": self.variance, "square": self.square}

    def load(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state`."""
        self.variance, self.square = state["variance"], state["square"]


class LocalGradientNorm:
    """Sums the squared norm of this rank's own gradient, before DDP averages it."""

    def __init__(self) -> None:
        self._squares: dict[int, torch.Tensor] = {}

    def register_hook(self, model: Any) -> None:
        """Watch the gradients of a ``DistributedDataParallel``; call before its first step."""
        # A lambda, because DDP checks the annotations of a function.
        model.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))

    def take(self, parameters: Iterable[Any]) -> torch.Tensor:
        """The squared norm since the last call."""
        # In the parameters' order: buckets differ between a segment's first step and later ones.
        squares = [self._squares[id(one)] for one in parameters if id(one) in self._squares]
        self._squares.clear()
        return _sum(squares)

    def _reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        for one, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self._squares[id(one)] = gradient.detach().float().square().sum()
        mine = bucket.buffer()
        mine.div_(dist.get_world_size())
        arriving = dist.all_reduce(mine, async_op=True).get_future()
        mean: torch.futures.Future[torch.Tensor] = arriving.then(lambda done: done.value()[0])
        return mean


def squared_norm(parameters: Iterable[Any]) -> torch.Tensor:
    """The squared norm of the gradients of some parameters."""
    return _sum([one.grad.float().square().sum() for one in parameters if one.grad is not None])


def _sum(squares: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(squares).sum() if squares else torch.tensor(math.nan)
