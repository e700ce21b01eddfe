"""The loss that ``Trainer`` sums up for its log, and that of a model on several slots.

``Trainer`` passes the number of labels in a step to each model that takes it, expects a loss that
is divided by it, and so multiplies each slot's part by the number of slots. A model whose loss is
a mean that ignores the number, as that of most classifiers, then has several times the loss and
gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from optuna_deadline_torch.consensus import Consensus
from torch import nn

COUNT = "num_items_in_batch"


def mend_loss(model: nn.Module, args: Any) -> None:
    """Switch the multiplication off at the first batch, if the model's loss ignores the number.

    Args:
        model: The bare model.
        args: The training arguments, whose ``average_tokens_across_devices`` the trainer reads
            after each forward pass.
    """

    def look(module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> None:
        handle.remove()  # before the passes below
        if named.get(COUNT) is None or _loss(output) is None:
            return
        training = module.training
        module.eval()  # without dropout, and without counting in a mean
        with torch.no_grad():
            once, twice = (
                _loss(module(*inputs, **(named | {COUNT: named[COUNT] * times})))
                for times in (1, 2)
            )
        module.train(training)
        if torch.equal(once, twice):
            args.average_tokens_across_devices = False

    handle = model.register_forward_hook(look, with_kwargs=True)


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
