"""Trainings whose slots come to models of their own without an error."""

from __future__ import annotations

from typing import Any

import elastic_training
import torch
from elastic_harness import Plan


class Apart(elastic_training.Net):
    """By gradients, or by learning rates, of its own slice; extras[0] says which."""

    def __init__(self, plan: Plan, seen: dict[str, Any], segment: Any = None) -> None:
        super().__init__(plan, seen, segment)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        if self.plan.extras[0] == "gradients":
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.manual_backward(loss)
        optimizer.step()
        if self.plan.extras[0] == "rates":
            self.lr_schedulers().step(loss)  # type: ignore[union-attr]
        self.segment.step = self.trainer.global_step
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)]


def train(plan: Plan, trial: Any, segment: Any, seen: dict[str, Any]) -> None:
    elastic_training.train(plan, trial, segment, seen, Apart)
