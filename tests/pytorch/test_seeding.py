"""Generators that objects keep for themselves are found, and draw by the place in training."""

from __future__ import annotations

import pickle
import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna_deadline_torch.loaders import SeededDataset
from optuna_deadline_torch.sampler import SeededIndices
from optuna_deadline_torch.seeding import Generators, reseed
from torch import nn
from torch.utils.data import ConcatDataset, RandomSampler, Subset

DRAWS: dict[str, Any] = {
    "torch": lambda: (one := torch.Generator(), lambda: float(torch.rand(1, generator=one))),
    "numpy": lambda: (one := np.random.default_rng(), one.random),
    "philox": lambda: (one := np.random.Generator(np.random.Philox()), one.random),
    "numpy, old": lambda: (one := np.random.RandomState(), one.randn),
    "old, of new bits": lambda: (one := np.random.RandomState(np.random.PCG64()), one.randn),
    "python": lambda: (one := random.Random(), one.random),
}


class Samples:
    """A dataset."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return index + self.rng.random()  # type: ignore[no-any-return, attr-defined]


@pytest.mark.parametrize("kind", DRAWS)
def test_each_kind_draws_by_the_place_alone(kind: str) -> None:
    one, draw = DRAWS[kind]()
    own = Generators(Samples(rng=one))
    drawn = []
    for place in (1, 2, 1):
        reseed(0, 3, place, own=own)
        drawn.append((draw(), draw()))
        draw()  # what was drawn before does not matter
    assert drawn[0] == drawn[2] != drawn[1]


WHERE: dict[str, Any] = {
    "a dataset in others": lambda rng: Subset(ConcatDataset([[], Samples(rng=rng)]), [0]),  # type: ignore[list-item]
    "transforms": lambda rng: Samples(transform=SimpleNamespace(transforms=[None, {"a": rng}])),
    "a module": lambda rng: nn.Sequential(nn.ReLU(), with_rng(nn.Linear(1, 1), rng)),
    "a partial": lambda rng: partial(print, rng=rng),
    "a method": lambda rng: Samples(rng=rng).__len__,
    "a closure": lambda rng: lambda: rng.random(),
    "a default": lambda rng: lambda own=rng: own.random(),
}


def with_rng(module: nn.Module, rng: Any) -> nn.Module:
    module.rng = rng
    return module


@pytest.mark.parametrize("where", WHERE)
def test_they_are_found_in_what_an_object_holds(where: str) -> None:
    rng = random.Random()
    own = Generators(WHERE[where](rng))
    drawn = [(own.seed(7), rng.random())[1] for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    "held",
    [
        lambda rng: optuna.create_study(sampler=rng_sampler(rng)),
        lambda rng: RandomSampler(range(4), generator=rng),
        lambda rng: [[rng]] * 5000,
    ],
    ids=["a study", "a sampler", "a long list"],
)
def test_what_draws_orders_or_parameters_is_left_alone(held: Any) -> None:
    rng = np.random.RandomState()
    before = pickle.dumps(rng)
    Generators(Samples(held=held(rng))).seed(7)
    assert pickle.dumps(rng) == before


def rng_sampler(rng: Any) -> optuna.samplers.BaseSampler:
    sampler = optuna.samplers.RandomSampler()
    sampler._rng._rng = rng
    return sampler


def test_no_two_draw_the_same_and_one_object_is_seeded_once() -> None:
    first, second = random.Random(), random.Random()
    samples = Samples(a=first, b=[second, first])
    samples.itself = samples  # type: ignore[attr-defined]
    own = Generators(samples)
    reseed(1, 2, own=own)
    assert len({first.random(), second.random(), random.random()}) == 3


def test_one_that_takes_the_place_of_another_is_seeded_in_its_stead() -> None:
    samples = Samples(rng=random.Random())
    own = Generators(samples)
    own.seed(5)
    drawn = samples.rng.random()  # type: ignore[attr-defined]
    samples.rng = random.Random()  # type: ignore[attr-defined]
    own.seed(5)
    assert samples.rng.random() == drawn  # type: ignore[attr-defined]
    del samples.rng  # type: ignore[attr-defined]
    own.seed(5)


def test_a_workers_copy_of_a_dataset_is_seeded_by_its_batch() -> None:
    def batch(number: int) -> SeededIndices:
        indices = SeededIndices([3, 4])
        indices.parts = 0, 0, 0, number
        return indices

    read = [
        [worker.__getitems__(batch(number)) for number in numbers]
        for numbers in ([0, 1], [1])
        for worker in [pickle.loads(pickle.dumps(SeededDataset(Samples(rng=random.Random()))))]
    ]
    assert read[0][1] == read[1][0] != read[0][0]
