"""Whether a loss is the mean over its batch, as several slots assume.

Slots average the gradients of their slices. That is the gradient of the whole batch if the loss is
a mean of terms of single samples. It is another one for a sum, a mean with class weights, or a
loss between the samples of a batch. So when a trial first leaves its one slot, with its checkpoint
saved, the process that is about to end steps once more: with the next batch, and with two parts of
it.

These steps have no effect. Optimizers do not move the weights in them, dropout is off, and batch
norms use their running statistics; their difference on several slots is another matter.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from optuna_deadline_torch.sampler import ElasticBatchSampler
from optuna_deadline_torch.seeding import READING, reseed

_log = logging.getLogger("optuna_deadline")

_TOLERANCE = 1e-4  # of the norm, in single precision and better
_ROUNDINGS = 4  # in lower ones
_QUIET = ("drop", "stochasticdepth", "batchnorm", "instancenorm")  # in the names of classes


class RehearsalStep(NamedTuple):
    """One step: the indices of its samples, their share of the batch, and the last seed part."""

    indices: Sequence[Any]
    weight: float
    salt: int


@dataclass(frozen=True)
class NextBatch:
    """The batch for the comparison.

    Attributes:
        loader: The training loader, as it is distributed.
        epoch: The next epoch.
        number: The next batch of it.
        indices: Of the batch's samples.
    """

    loader: DataLoader[Any]
    epoch: int
    number: int
    indices: Sequence[Any]

    def read(self, place: tuple[int, ...]) -> Iterator[tuple[RehearsalStep, Any]]:
        """Read its parts and their batches through the user's loader, each sample once.

        Args:
            place: The seed of random numbers.
        """
        parts = [*self._parts()]
        batches = iter(self._undealt([list(part.indices) for part in parts]))
        for part in parts:
            reseed(*place, READING, part.salt)
            yield part, next(batches)

    def _parts(self) -> Iterator[RehearsalStep]:
        """The whole batch, again with other random numbers, and two parts of it."""
        whole = len(self.indices)
        # Their lengths have no common divisor, so that no part has its share of a class by luck:
        # equal halves of 16 samples have the same number of ignored ones one time in five.
        near = (one for one in range(whole // 2, 1, -1) if math.gcd(one, whole) == 1)
        cut = next(near, whole // 2)
        yield RehearsalStep(self.indices, 1.0, 0)
        yield RehearsalStep(self.indices, 1.0, 1)
        for part in (self.indices[:cut], self.indices[cut:]):
            yield RehearsalStep(part, len(part) / whole, 0)

    def _undealt(self, batches: list[list[Any]]) -> DataLoader[Any]:
        plain = copy.copy(self.loader)
        changes: dict[str, Any] = {
            "batch_sampler": batches,
            "dataset": _CachedDataset(self.loader.dataset),
            "num_workers": 0,
            "timeout": 0,
            "prefetch_factor": None,
            "persistent_workers": False,
            "_iterator": None,
        }
        for name, value in changes.items():  # DataLoader itself forbids some
            object.__setattr__(plain, name, value)
        return plain


def next_batch(loader: Any, epoch: int, number: int) -> NextBatch | None:
    """The next batch of a distributed loader; None if it has fewer than two samples."""
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(sampler, ElasticBatchSampler):
        return None
    batches = sampler.epoch_batches(epoch)
    for place in [*range(number, len(batches)), *range(number)]:
        if len(batches[place]) > 1:
            return NextBatch(loader, epoch, place, list(batches[place]))
    return None


class Rehearsal:
    """The gradients of a few steps without training.

    Args:
        model: The bare model.
        objects: Its optimizers, gradient scalers and others.
    """

    def __init__(self, model: nn.Module, objects: Iterable[Any]) -> None:
        self._model = model
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        self._now: dict[int, torch.Tensor] = {}
        self._whole: dict[int, torch.Tensor] = {}
        self._mean: dict[int, torch.Tensor] = {}
        self._norms = 0.0  # of the parts, by their shares
        self._done = 0
        self._random = False
        self._coarsest = 0.0
        self._scalers = []
        for one in objects:
            if isinstance(one, torch.optim.Optimizer):
                one.step = _no_step  # type: ignore[method-assign]
            elif "GradScaler" in type(one).__name__:
                self._scalers.append((one, copy.deepcopy(one.state_dict())))
        for number, parameter in enumerate(self._parameters):
            parameter.register_hook(partial(self._take, number))  # type: ignore[no-untyped-call]
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self._watch_autocast()

    def begin(self, *place: int) -> None:
        """Start a step, with random numbers that are seeded by its position."""
        reseed(*place)
        self._now = {}
        for parameter in self._model.parameters():
            parameter.grad = None
        for scaler, state in self._scalers:
            scaler.load_state_dict(state)
        _hush(self._model)

    def end(self, part: RehearsalStep) -> None:
        """Record the gradient of the step with ``part``."""
        if self._done == 0:
            self._whole = self._now
        elif self._done == 1:
            # Atomic additions on a GPU differ in their last digits, and noise in its first.
            self._random = not self._near(self._now, _norm(self._whole), self._tolerance / 4)
        else:
            self._norms += part.weight * _norm(self._now)
            for number, one in self._now.items():
                one.mul_(part.weight)
                self._mean[number] = self._mean[number] + one if number in self._mean else one
        self._done += 1
        self._now = {}

    def verdict(self) -> str | None:
        """Why the loss is not a mean over its batch; None if it is one or that is unknown.

        With G the gradient of the whole batch over all parameters, and g those of its parts with
        their shares w of the samples, it is one if

            |G - sum(w g)|  <=  1e-4 max(|G|, sum(w |g|)),

        in lower precisions four times their rounding. The second bound counts if the parts of a
        gradient cancel.
        """
        torch.autocast.__enter__ = self._enter  # type: ignore[method-assign]
        scale = max(_norm(self._whole), self._norms)
        if not scale or not math.isfinite(scale):
            return skipped("the batch has no finite gradient")
        if self._random:
            return skipped(
                "its gradient is not the same twice, since the model or its batches draw random"
                " numbers beside dropout layers"
            )
        if self._near(self._mean, scale, self._tolerance):
            return None
        return (
            "the loss is not a mean over the batch (the gradients of a batch and of its parts"
            f" are {self._gap(self._mean) / scale:.1g} of their length apart), so that it"
            " would train another model on several slots: divide a sum by the number of samples in"
            " the batch, use reduction='mean' without class weights and ignored targets, or keep"
            " its trials on one slot with max_slots=1"
        )

    # ---- internal

    @property
    def _tolerance(self) -> float:
        kinds = {one.dtype for one in self._parameters}
        return max(_TOLERANCE, _ROUNDINGS * max([self._coarsest, *map(_rounding, kinds)]))

    def _near(self, other: dict[int, torch.Tensor], scale: float, tolerance: float) -> bool:
        return self._gap(other) <= tolerance * scale

    def _gap(self, other: dict[int, torch.Tensor]) -> float:
        apart = {
            number: self._whole[number] - other[number]
            if number in self._whole and number in other
            else (self._whole if number in self._whole else other)[number]
            for number in self._whole.keys() | other.keys()
        }
        return _norm(apart)

    def _take(self, number: int, gradient: torch.Tensor) -> None:
        one = gradient.detach()
        one = one.to_dense() if one.layout is not torch.strided else one
        one = one.to(torch.promote_types(one.dtype, torch.float32), copy=True)
        self._now[number] = self._now[number] + one if number in self._now else one

    def _watch_autocast(self) -> None:
        self._enter = enter = torch.autocast.__enter__

        def entered(context: Any) -> Any:
            if context._enabled:
                self._coarsest = max(self._coarsest, _rounding(context.fast_dtype))
            return enter(context)  # type: ignore[no-untyped-call]

        torch.autocast.__enter__ = entered  # type: ignore[method-assign]


class _CachedDataset:
    """The user's dataset, with the same samples at each read."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._read: dict[Any, Any] = {}

    def __getitem__(self, index: Any) -> Any:
        if index not in self._read:
            self._read[index] = self._dataset[index]
        return copy.deepcopy(self._read[index])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)


def skipped(why: str) -> str | None:
    """Log that a trial's loss is assumed to be a mean."""
    _log.info(
        "Whether the loss is a mean over the batch was not compared on one slot and two: %s. On"
        " several slots it has to be one.",
        why,
    )
    return None


def _hush(model: nn.Module) -> None:
    for module in model.modules():
        name = type(module).__name__.lower()
        if any(part in name for part in _QUIET):
            module.training = False
        elif isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
            module.dropout = 0.0


def _no_step(closure: Any = None, *_: Any, **__: Any) -> Any:
    """Does nothing, instead of an optimizer's step."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _rounding(kind: torch.dtype) -> float:
    return torch.finfo(kind).eps if kind.is_floating_point else 0.0


def _norm(tensors: dict[int, torch.Tensor]) -> float:
    return math.sqrt(sum(float(one.norm()) ** 2 for one in tensors.values()))
