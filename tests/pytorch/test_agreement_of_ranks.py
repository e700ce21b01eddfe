"""Which differences between ranks are told, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optuna_deadline_torch.consensus import Consensus, ReplicatedState, digest


class Known(Consensus):
    """Two ranks, of which the other is known beforehand."""

    def __init__(self, other: Any) -> None:
        super().__init__(0, 2)
        self.other = other

    def gather(self, own: Any) -> list[Any]:
        return [own, self.other]


def trained(weight: float, rate: Any) -> ReplicatedState:
    one = torch.nn.Parameter(torch.full((3, 2), weight))
    other = torch.nn.Parameter(torch.zeros(2))
    groups = [{"params": [one]}, {"params": [other], "lr": rate}]
    return ReplicatedState([one, other], [torch.optim.SGD(groups, lr=0.1)], "do this")


def voice(one: ReplicatedState) -> Any:
    gathered: list[Any] = []
    asked = Consensus(0, 1)
    asked.gather = lambda own: gathered.append(own) or [own]  # type: ignore[method-assign, func-returns-value]
    assert one.difference(asked) is None
    return gathered[0]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ((1.0, 0.01), None),
        ((1.0, torch.tensor(0.01, dtype=torch.float64)), None),
        ((1.0 + 2**-23, 0.01), "do this"),
        ((1.0, 0.005), "(0.01 and 0.005)"),
        ((2.0, 0.005), "learning rates"),
    ],
)
def test_what_differs_is_said(other: tuple[float, Any], words: str | None) -> None:
    found = trained(1.0, 0.01).difference(Known(voice(trained(*other))))
    assert (found is None) if words is None else (found is not None and words in found)


def test_a_scheduler_that_watches_values_of_its_slot_is_told_before_its_rates_differ() -> None:
    def watching(value: float) -> ReplicatedState:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        scheduler.step(value)
        return ReplicatedState([], [optimizer], "do this", [optimizer, scheduler])

    assert watching(0.5).difference(Known(voice(watching(0.5)))) is None
    assert "(at best 0.5 and 0.4)" in str(watching(0.5).difference(Known(voice(watching(0.4)))))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int8],
)
def test_a_digest_is_of_every_bit(dtype: torch.dtype) -> None:
    one = torch.ones(4, 3).to(dtype)
    other = one.clone()
    assert digest([one, one.t()]) == digest([other, other.t()])
    other[2, 1] = 3
    assert digest([one]) != digest([other]) and digest([one[:, :1]]) == digest([other[:, :1]])
    missing = torch.tensor([float("nan")])
    assert digest([missing]) == digest([missing.clone()]), "a model that diverged is one model"
