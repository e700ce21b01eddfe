"""The same global batches for every number of ranks, whatever the user's sampler is."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from optuna_deadline_torch import ElasticBatchSampler
from optuna_deadline_torch.loaders import can_be_dealt, elastic_loader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from optuna_deadline.errors import DeadlineError

N = 53


def samplers() -> dict[str, Any]:
    return {
        "shuffled": RandomSampler(range(N)),
        "in order": SequentialSampler(range(N)),
        "own generator": RandomSampler(range(N), generator=torch.Generator().manual_seed(9)),
        "weighted": WeightedRandomSampler([1.0 + i for i in range(N)], N),
    }


@pytest.mark.parametrize("name", samplers())
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_ranks_share_each_batch(name: str, ranks: int) -> None:
    def elastic(rank: int, world_size: int) -> ElasticBatchSampler:
        torch.manual_seed(rank)  # nothing may depend on a process's own generator
        batches = BatchSampler(samplers()[name], 8, drop_last=False)
        return ElasticBatchSampler(batches, seed=1, rank=rank, world_size=world_size)

    for epoch in (0, 1):
        one, *many = elastic(0, 1), *(elastic(rank, ranks) for rank in range(ranks))
        for sampler in (one, *many):
            sampler.set_epoch(epoch)
        whole, slices = list(one), [list(sampler) for sampler in many]
        assert all(len(each) == len(one) == 7 for each in slices)
        for b, batch in enumerate(whole):
            weights = [sampler.weight(b) for sampler in many]
            dealt = [i for r in range(ranks) if weights[r] for i in slices[r][b]]
            assert sorted(dealt) == sorted(batch)
            per_sample = [weights[r] / len(slices[r][b]) / ranks for r in range(ranks)]
            assert all(p == pytest.approx(1 / len(batch)) for p in per_sample if p)


@pytest.mark.parametrize("name", ["shuffled", "own generator", "weighted"])
def test_sought_batch_and_new_order_per_epoch(name: str) -> None:
    def fresh() -> ElasticBatchSampler:
        return ElasticBatchSampler(BatchSampler(samplers()[name], 8, drop_last=True), seed=1)

    sampler = fresh()
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert len(first) == 6 and first != second
    sampler = fresh()
    sampler.seek(1, 4)
    sampler.set_epoch(1)  # Lightning says it again after a resume
    assert list(sampler) == second[4:]
    assert list(sampler) == second


def test_drawing_leaves_the_random_state_alone() -> None:
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(1), random.random()
    torch.manual_seed(5)
    random.seed(5)
    list(ElasticBatchSampler(BatchSampler(RandomSampler(range(N)), 8, False)))
    assert (torch.rand(1), random.random()) == expected


def test_loader_keeps_everything_but_its_sampler() -> None:
    class Special(DataLoader[Any]):
        pass

    def collate(rows: Any) -> Any:
        return len(rows)

    loader = Special(TensorDataset(torch.arange(N)), 8, shuffle=True, collate_fn=collate)
    elastic = elastic_loader(
        loader, lambda batches: ElasticBatchSampler(batches, rank=1, world_size=2)
    )
    assert isinstance(elastic, Special) and elastic.collate_fn is collate
    assert list(elastic) == [4, 4, 4, 4, 4, 4, 2] and len(elastic) == 7
    assert not isinstance(loader.batch_sampler, ElasticBatchSampler), "the user's is not touched"


def test_what_cannot_be_dealt() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(N))

    assert not can_be_dealt(DataLoader(Stream(), 8))
    assert not can_be_dealt([1, 2])
    assert not can_be_dealt(DataLoader(TensorDataset(torch.arange(N)), batch_size=None))
    data = TensorDataset(torch.arange(N))
    sharded = DataLoader(data, 8, sampler=DistributedSampler(data, 2, 0))
    with pytest.raises(DeadlineError, match="DistributedSampler"):
        elastic_loader(sharded, lambda batches: ElasticBatchSampler(batches))
