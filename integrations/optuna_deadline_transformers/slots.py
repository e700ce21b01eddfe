"""Training arguments for a number of slots, with the same batch in each step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from transformers.trainer import TRAINER_STATE_NAME

from optuna_deadline.checkpoints.files import write_atomically
from optuna_deadline.errors import DeadlineError

#: Orders of samples that depend on the number of slots.
_BY_LENGTH = ("group_by_length", "batch_rebalance")
_RESUMES_ON_CPUS = (5, 18)  # before, it loads the optimizer to the device "cpu:0"


class StepBatch(NamedTuple):
    """The batch of one optimizer step, as each slot trains it."""

    per_device: int  #: samples of one forward pass
    accumulated: int  #: forward passes

    @property
    def samples(self) -> int:
        """All of its samples."""
        return self.per_device * self.accumulated

    def groups(self, slots: int) -> int:
        """The number of passes that several slots train at once."""
        return math.gcd(self.accumulated, slots)

    def on(self, slots: int) -> StepBatch | None:
        """The batch on several slots: fewer passes first, which keeps the memory of a pass.

        None if the slots do not divide it.
        """
        shared = self.groups(slots)
        left = slots // shared
        if self.per_device % left:
            return None
        return StepBatch(self.per_device // left, self.accumulated // shared)


def refuse(args: Any) -> None:
    """Refuse arguments with which a training cannot change its slots.

    Raises:
        DeadlineError: The model is sharded, or the batch is searched for.
    """
    sharding = "fsdp" if getattr(args, "fsdp", None) else "deepspeed"
    if getattr(args, sharding, None):
        raise DeadlineError(
            f"TrainingArguments({sharding}=...) shards the model, and a sharded trial cannot "
            "change its number of slots: leave it out, with a model that fits on one slot, or "
            "train it outside of an elastic trial."
        )
    if args.auto_find_batch_size:
        raise DeadlineError(
            "auto_find_batch_size=True would change the batch while slots train it: find one "
            "first, and pass per_device_train_batch_size."
        )


def one_slot_only(args: Any) -> str | None:
    """Why a training with these arguments has to stay on one slot."""
    order = getattr(args, "train_sampling_strategy", None)
    if order in _BY_LENGTH or getattr(args, "group_by_length", False):
        return "samples that are grouped by length have another order on each number of slots"
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if args.device.type == "cpu" and version < _RESUMES_ON_CPUS:
        return "before version 5.18, transformers cannot resume on several CPU slots"
    if args.accelerator_config.split_batches:
        return "split_batches=True divides each batch among the slots by itself"
    return None


def note_batch(checkpoint: Path, own: StepBatch | None) -> None:
    """Write this segment's batch into a checkpoint: the trainer warns of another one."""
    file = checkpoint / TRAINER_STATE_NAME
    state = json.loads(file.read_text())
    if own is not None and state["train_batch_size"] != own.per_device:
        text = json.dumps(state | {"train_batch_size": own.per_device})
        write_atomically(file, lambda path: path.write_text(text))  # each rank of the host does


def regime_of(args: Any, batch: StepBatch) -> str:
    """The name of what decides how long a step takes."""
    times = f" x {batch.accumulated}" if batch.accumulated > 1 else ""
    precision = ", bf16" if args.bf16 else ", fp16" if args.fp16 else ""
    return f"batch {batch.per_device}{times}{precision}"
