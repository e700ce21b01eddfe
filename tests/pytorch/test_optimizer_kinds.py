"""Tensors of an optimizer come back in their own kind, not in that of the parameters."""

from __future__ import annotations

import copy

import torch
from optuna_deadline_torch.states import restore_kinds
from torch import nn


def stepped(layer: nn.Linear, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimizer.step()


def test_what_an_optimizer_counts_in_single_precision_stays_in_single_precision() -> None:
    whole = nn.Linear(2, 1).double()
    optimizer = torch.optim.NAdam(whole.parameters())
    stepped(whole, optimizer, 3)
    again = copy.deepcopy(whole)
    saved = copy.deepcopy(optimizer.state_dict())
    other = torch.optim.NAdam(again.parameters())
    other.load_state_dict(saved)
    restore_kinds(other, saved)
    stepped(whole, optimizer, 3)
    stepped(again, other, 3)
    for one, two in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_state_that_is_not_numbered_by_parameters_is_left() -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    restore_kinds(optimizer, {"state": {"all": {"count": torch.ones(1)}}})
    assert not optimizer.state
