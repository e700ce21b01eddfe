"""A slot's part of each step that one slot would train.

accelerate divides full batches as needed here. But it completes the last ones of an epoch with
samples of the epoch's beginning, so that a step has other samples on each number of slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from accelerate.data_loader import BatchSamplerShard
from optuna_deadline_torch.loaders import can_be_dealt
from torch.utils.data import BatchSampler

from optuna_deadline_transformers.slots import StepBatch


class StepShares:
    """The batches of one slot in an epoch.

    Slots share each full step. The passes that an epoch has left for its last step are not
    divided: each group of slots trains some of them, or all slots the only one. The mean of the
    gradients is the same.

    Args:
        batches: The batches of all slots, one after the other, in their usual size.
        whole: The batch of a step, as one slot trains it.
        slots: The number of slots.
        rank: The number of this one.
    """

    def __init__(self, batches: BatchSampler, whole: StepBatch, slots: int, rank: int) -> None:
        self._batches, self._whole, self._slots, self._rank = batches, whole, slots, rank
        self._groups = whole.groups(slots)
        self._size = whole.per_device * self._groups // slots
        self.batch_size, self.drop_last = batches.batch_size, batches.drop_last

    @property
    def sampler(self) -> Any:
        """The order of samples, whose epoch the trainer sets."""
        return self._batches.sampler

    def __iter__(self) -> Iterator[list[int]]:
        step: list[int] = []
        for index in self.sampler:
            step.append(index)
            if len(step) == self._whole.samples:
                for start in range(self._rank * self._size, len(step), self._size * self._slots):
                    yield step[start : start + self._size]
                step = []
        yield from self._own(self._passes(step))

    def __len__(self) -> int:
        full, left = divmod(len(self.sampler), self._whole.samples)
        passes = self._whole.accumulated // self._groups
        return full * passes + len(self._own(self._passes(range(left))))

    @property
    def impossible(self) -> str | None:
        """Why the slots cannot share the last step, as the trainer counts its passes."""
        left = self._left
        # The trainer has counted passes of another size, and dropped more of them.
        if left and (self.drop_last or (left > 1 and left % self._groups)):
            return f"{self._slots} slots cannot share the passes of an epoch's last step"
        return None

    def at_once(self, step: int) -> int:
        """How many passes the slots train at the same time, in a step of the training."""
        full = len(self.sampler) // self._whole.samples
        return 1 if self._left == 1 and step % (full + 1) == full else self._groups

    @property
    def _left(self) -> int:
        """The number of passes in the last step, if it is not a full one."""
        return len(self._passes(range(len(self.sampler) % self._whole.samples)))

    def _passes(self, left: Sequence[int]) -> list[Any]:
        size = self._whole.per_device
        if self.drop_last:
            left = left[: len(left) // size * size]
        return [left[start : start + size] for start in range(0, len(left), size)]

    def _own(self, passes: list[Any]) -> list[Any]:
        """The passes of the last step that this slot trains."""
        return passes if len(passes) == 1 else passes[self._rank % self._groups :: self._groups]


def share_steps(
    loader: Any, whole: StepBatch, slots: int, rank: int
) -> tuple[StepShares | None, str | None]:
    """Let a loader of accelerate's read a slot's part of each step.

    Returns:
        What it reads now, on several slots; why several could not share it, if so.
    """
    if not can_be_dealt(loader):  # a stream, which accelerate divides
        return None, None
    own, part = getattr(loader, "base_dataloader", loader), whole.on(slots)
    batches: Any = own.batch_sampler
    if slots > 1:
        if not isinstance(batches, BatchSamplerShard):
            return None, "accelerate has not prepared the training loader, so each slot reads all"
        batches = batches.batch_sampler
    if type(batches) is not BatchSampler or part is None or batches.batch_size != part.per_device:
        return None, "the training loader's batch_size is not args.per_device_train_batch_size"
    if slots == 1:
        return None, None
    shares = StepShares(batches, whole, slots, rank)
    # DataLoader forbids the assignment, because a running iterator would ignore it.
    object.__setattr__(own, "batch_sampler", shares)
    return shares, shares.impossible
