"""The name that a loop gives to what decides how long its steps take."""

from __future__ import annotations

import pytest
import torch
from optuna_deadline_torch.regimes import precision_of, regime_name
from torch import nn
from torch.utils.data import DataLoader


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_the_precision_is_that_of_the_forward_pass(kind: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.autocast("cpu", dtype=kind, enabled=kind is not torch.float32):
        scores = model(torch.randn(3, 4))
    loss = nn.functional.cross_entropy(scores.float(), torch.tensor([0, 1, 0]))
    assert precision_of(loss * 1024.0) == str(kind).removeprefix("torch.")


def test_a_loss_without_a_graph_has_its_own_precision() -> None:
    assert precision_of(torch.tensor(1.0, dtype=torch.float64)) == "float64"


def test_a_name_has_batches_accumulation_and_precision() -> None:
    data = [torch.zeros(2)] * 8
    loaders = [DataLoader(data, 4), DataLoader(data, 2)]
    assert regime_name(loaders, precision="float32") == "batch 4+2, float32"
    assert regime_name(loaders[:1], 3, "16-mixed") == "batch 4 x 3, 16-mixed"
    assert regime_name([object()], precision="float32") == "batch ?, float32"
    assert len(regime_name(loaders * 20)) <= 40
