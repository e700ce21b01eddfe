"""The loss that ``Trainer`` sums up for its log, and that of a step that slots share.

``Trainer`` passes the number of labels in a step to each model that takes it, and expects a loss
that is divided by it. So it multiplies each slot's part by the number of slots, and adds up the
passes of a step. But most classifiers ignore the number: their loss is the mean of a pass, and a
step's gradient is the sum of its passes.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

import torch
from optuna_deadline_torch.consensus import Consensus
from torch import nn
from transformers import Trainer

COUNT = "num_items_in_batch"


def share_losses(trainer: Trainer, model: nn.Module, at_once: Callable[[int], int]) -> None:
    """Let a step that slots share have the gradient and the logged loss that it has on one.

    Args:
        trainer: The trainer, whose training begins.
        model: The bare model.
        at_once: How many of a step's passes the slots train at the same time, by global step.
    """
    compute: Callable[..., Any] = trainer.compute_loss
    args, last = trainer.args, _last_function(trainer)
    ignored = None if last is None else not _reads_count(last)  # the number

    def look(module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> None:
        nonlocal ignored
        if not module.training:  # in an evaluation
            return
        handle.remove()  # before the passes below
        if named.get(COUNT) is None or _loss(output) is None:
            return
        module.eval()  # without dropout, and without counting in a mean
        with torch.no_grad():
            once, twice = (
                _loss(module(*inputs, **(named | {COUNT: named[COUNT] * times})))
                for times in (1, 2)
            )
        module.train()
        ignored = torch.equal(once, twice)
        args.average_tokens_across_devices &= not ignored  # which is read after the pass

    def compute_loss(model: nn.Module, inputs: Any, *further: Any, **named: Any) -> Any:
        nonlocal ignored
        loss = compute(model, inputs, *further, **named)
        if not model.training:
            return loss
        if ignored is None:  # the model was not given it
            own = _own_loss(trainer)
            ignored = own is None or not _reads_count(own)
        if ignored and _adds_passes(trainer, named.get(COUNT)):
            loss = loss * at_once(trainer.state.global_step)
        return loss

    args.average_tokens_across_devices &= not ignored
    if last is None:
        handle = model.register_forward_hook(look, with_kwargs=True)
    vars(trainer)["compute_loss"] = compute_loss


def _last_function(trainer: Trainer) -> Callable[..., Any] | None:
    """What computes the loss of a model's outputs, if the model does not."""
    if trainer.compute_loss_func is not None:
        return trainer.compute_loss_func
    return None if trainer.label_smoother is None else type(trainer.label_smoother).__call__


def _adds_passes(trainer: Trainer, count: Any) -> bool:
    """Whether a trainer adds the losses of a step's passes up, and takes no mean."""
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if scaled is not None:
        return bool(scaled)
    accepts = trainer.model_accepts_loss_kwargs and count is not None
    return accepts or trainer.compute_loss_func is not None


def _own_loss(trainer: Trainer) -> Callable[..., Any] | None:
    """A ``compute_loss`` of the user's."""
    compute = type(trainer).compute_loss
    return None if compute is Trainer.compute_loss else compute


def _reads_count(function: Callable[..., Any]) -> bool:
    """Whether a function uses the number of labels, as far as its code says."""
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    steps = dis.get_instructions(code)
    return any(one.opname.startswith("LOAD") and one.argval == COUNT for one in steps)


def divides_by_itself(trainer: Trainer) -> str | None:
    """Why a trainer's own ``compute_loss`` is another one on several slots, if it is."""
    own, known = _own_loss(trainer), {"super", "num_processes", "world_size"}
    code = getattr(own, "__code__", None)
    if own is None or code is None or not _reads_count(own) or known & {*code.co_names}:
        return None
    return (
        f"compute_loss divides by {COUNT}, which is that of all slots: multiply the loss by"
        " self.accelerator.num_processes"
    )


class RunningLoss:
    """What a trainer has summed up since it last logged a loss; its checkpoints have none of it.

    Args:
        trainer: The trainer, whose training begins.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._known = hasattr(trainer, "_tr_loss")  # as from some version on

    def state(self, consensus: Consensus) -> list[float]:
        """The mean of all ranks, and the step of the last log; every rank calls it."""
        if not self._known:
            return []
        sums = consensus.gather(float(self._trainer._tr_loss))
        return [sum(sums) / len(sums), self._trainer._globalstep_last_logged]

    def restore(self, saved: list[float]) -> None:
        """Restore :meth:`state`; the mean that ``train`` returns stays that of its own steps."""
        if self._known and saved:
            self._trainer._tr_loss += saved[0]
            self._trainer._total_loss_scalar -= saved[0]
            self._trainer._globalstep_last_logged = int(saved[1])


def _loss(output: Any) -> Any:
    found = output.get("loss") if isinstance(output, dict) else output[0]
    return found if isinstance(found, torch.Tensor) else None
