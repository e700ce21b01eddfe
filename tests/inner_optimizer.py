"""An optimizer with another one within, as users write it."""

from __future__ import annotations

from typing import Any

import torch


class Wrapping(torch.optim.Optimizer):
    """Steps by another optimizer, whose groups it shares, as SAM does.

    Args:
        parameters: The parameters.
        base: Makes the other one.
        options: Of the other one.
    """

    def __init__(self, parameters: Any, base: Any, **options: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base = base(self.param_groups, lr=0.1, **options)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.base.param_groups = self.param_groups
