"""An optimizer's tensors come back in their own kind, and optimizers within it too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from optuna_deadline.optimizer_state import load_whole_state, restore_kinds, whole_state


class Within(torch.optim.Optimizer):
    """Steps by another optimizer, whose groups it shares, as SAM does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base = torch.optim.NAdam(self.param_groups, lr=0.1)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.base.param_groups = self.param_groups


def stepped(layer: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9


@pytest.mark.parametrize("kind", [torch.optim.NAdam, Within])
def test_an_optimizer_that_is_loaded_steps_as_the_one_that_was_saved(kind: Any) -> None:
    whole = nn.Linear(2, 1).double()
    optimizer = kind(whole.parameters())
    stepped(whole, optimizer)
    again, saved = copy.deepcopy(whole), copy.deepcopy(whole_state(optimizer))
    other = kind(again.parameters())
    load_whole_state(other, saved)
    stepped(whole, optimizer)
    stepped(again, other)
    for one, two in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_state_that_is_not_numbered_by_parameters_is_left() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    restore_kinds(optimizer, {"state": {"all": {"count": torch.ones(1)}}})
    assert not optimizer.state
