"""A digest tells other data, reads no sample, and is the same in each process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from optuna_deadline_torch.data_digest import data_digest
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset


class Held(Dataset[Any]):
    """Data in attributes; no sample of it can be read."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)
        self.itself = self

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("a sample is read")


X = torch.arange(1000.0).reshape(100, 10)
#: Two kinds of data that differ in one thing.
PAIRS: dict[str, Callable[[Any], Any]] = {
    "a tensor's values": lambda other: TensorDataset(X + other),
    "a tensor's type": lambda other: TensorDataset(X.to([torch.float32, torch.bfloat16][other])),
    "a tensor's shape": lambda other: TensorDataset(X if other else X.T),
    "an array": lambda other: Held(data=np.ones((100, 3)) * (1 + other)),
    "a list of numbers": lambda other: Held(labels=[*range(200), other]),
    "names of files": lambda other: Held(files=[f"{other}.png", "b.png"]),
    "a subset": lambda other: Subset(TensorDataset(X), [other, 5, 7]),
    "one of several": lambda other: ConcatDataset([TensorDataset(X), TensorDataset(X * other)]),
    "within an object": lambda other: Held(source=Held(by_name={"x": [X, X + other]})),
}


@pytest.mark.parametrize("name", PAIRS)
def test_other_data_has_another_digest(name: str) -> None:
    make = PAIRS[name]
    assert data_digest(make(0)) == data_digest(copy.deepcopy(make(0)))
    assert data_digest(make(0)) != data_digest(make(1))


def test_what_differs_between_processes_is_left_out() -> None:
    one = Held(data=X, root="/tmp/a", files=["/tmp/a/1.png"], opened=object(), lock=print)
    other = Held(data=X, root="/tmp/b", files=["/tmp/b/1.png"], opened=object(), lock=len)
    assert data_digest(one) == data_digest(other)


def test_any_data_has_a_digest() -> None:
    for data in (None, object(), [], Held(), torch.zeros(0), np.array(["a", None]), X.to_sparse()):
        assert len(data_digest(data)) == 16


def test_lists_of_lists_take_no_longer_than_others() -> None:
    within: Any = [0] * 64
    for _ in range(4):
        within = [within] * 64
    assert len(data_digest(Held(data=within))) == 16
