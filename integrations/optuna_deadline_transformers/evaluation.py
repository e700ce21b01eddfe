"""The loss and the data of an evaluation on several slots, batch by batch as on one.

The trainer divides a batch's loss by the labels of the batches of all slots, and accelerate
completes the last batch with samples of the beginning, whose part of the loss nothing removes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_pt_utils import find_batch_size


def evaluate_alone(trainer: Trainer) -> None:
    """Let each slot of a trainer compute the losses of its batches as one slot does."""
    if "prediction_step" in vars(trainer):
        return
    predict, args = trainer.prediction_step, trainer.args

    def prediction_step(
        model: Any, inputs: Any, prediction_loss_only: bool, *further: Any, **named: Any
    ) -> tuple[Any, ...]:
        size = find_batch_size(inputs) or 0  # type: ignore[no-untyped-call]
        own = _own_samples(trainer, size)
        filled = 0 < own < size
        alone = _first(inputs, own, size) if filled else inputs  # before a step takes labels out
        shared = args.average_tokens_across_devices
        args.average_tokens_across_devices = False
        try:
            loss, *found = predict(model, inputs, prediction_loss_only, *further, **named)
            if filled and loss is not None:
                loss = predict(model, alone, True, *further, **named)[0]
        finally:
            args.average_tokens_across_devices = shared
        return (loss, *found)

    vars(trainer)["prediction_step"] = prediction_step


def seed_evaluations(trainer: Trainer, seed: Callable[[], None]) -> None:
    """Seed what an evaluation's loader draws, such as an order, in all slots alike."""
    make = trainer.get_eval_dataloader

    def get_eval_dataloader(*given: Any, **named: Any) -> Any:
        seed()
        return make(*given, **named)

    vars(trainer)["get_eval_dataloader"] = get_eval_dataloader


def _own_samples(trainer: Trainer, size: int) -> int:
    """How many samples of a batch no other batch has; 0 if not one."""
    state = trainer.accelerator.gradient_state
    if not state.end_of_dataloader or state.remainder <= 0:
        return size
    own: int = state.remainder - trainer.args.process_index * size
    return own


def _first(inputs: Any, count: int, size: int) -> Any:
    """The first samples of a batch."""
    if isinstance(inputs, torch.Tensor):
        return inputs[:count] if inputs.ndim and len(inputs) == size else inputs
    if isinstance(inputs, Mapping):
        return {name: _first(one, count, size) for name, one in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return type(inputs)(_first(one, count, size) for one in inputs)
    return inputs
