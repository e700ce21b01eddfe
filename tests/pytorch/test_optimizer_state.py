"""An optimizer's tensors come back in their own kind, and optimizers within it too."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from inner_optimizer import Wrapping
from torch import nn

from optuna_deadline.optimizer_state import load_whole_state, restore_kinds, whole_state


def stepped(layer: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9


@pytest.mark.parametrize("kind", [torch.optim.NAdam, partial(Wrapping, base=torch.optim.NAdam)])
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
