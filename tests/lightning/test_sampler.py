"""The same global batches for every number of ranks, whatever the user's sampler is."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import elastic_data
import numpy as np
import pytest
import torch
from optuna_deadline_torch import ElasticBatchSampler
from optuna_deadline_torch.consensus import Consensus
from optuna_deadline_torch.loaders import can_be_dealt, elastic_loader
from optuna_deadline_torch.sample_order import fingerprints, refuse_another_order
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
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


# ---- the order of a checkpoint is that of each segment


class OwnNumbers(Sampler[int]):
    """Draws from a generator of its own, which goes on over all epochs."""

    def __init__(self, seed: int | None = 0) -> None:
        self.numbers = np.random.default_rng(seed)

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.permutation(N).tolist())


class ByEpoch(OwnNumbers):
    """The same, mended by the line that the refusal names."""

    def set_epoch(self, epoch: int) -> None:
        self.numbers = np.random.default_rng(epoch)


class Counting(Sampler[int]):
    """Counts its epochs itself."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(random.Random(self.epoch).sample(range(N), N))


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(N).tolist()


def in_batches(sampler: Any, size: int = 8) -> ElasticBatchSampler:
    return ElasticBatchSampler(BatchSampler(sampler, size, drop_last=False), seed=1)


def resume(sampler: ElasticBatchSampler, epoch: int, batch: int, saved: Any = None) -> None:
    refuse_another_order([sampler], epoch, batch, consensus=Consensus(0, 1), saved=saved)


def test_a_sampler_with_a_count_of_its_own_is_refused_before_the_first_step() -> None:
    with pytest.raises(DeadlineError, match=r"draws another order .*def set_epoch\(self, epoch\)"):
        resume(in_batches(Counting()), 0, 0)


@pytest.mark.parametrize("seed", [0, None])
def test_generators_of_a_sampler_are_seeded_for_each_epoch(seed: int | None) -> None:
    one, other = (in_batches(OwnNumbers(seed)) for _ in range(2))
    resume(one, 0, 0)
    orders = [[*one.epoch_batches(epoch)] for epoch in range(3)]
    assert orders[0] != orders[1] and orders[2] == [*other.epoch_batches(2)]


def test_the_epoch_that_a_sampler_is_given_decides_before_its_seed() -> None:
    expected = np.random.default_rng(2).permutation(N).tolist()
    assert [*chain(*in_batches(ByEpoch()).epoch_batches(2))] == expected


@pytest.mark.parametrize(
    "sampler", [ByEpoch(), RandomSampler(range(N)), SequentialSampler(range(N))]
)
def test_an_order_that_follows_from_the_epoch_goes_on_at_each_place(sampler: Any) -> None:
    for epoch, batch in ((0, 0), (0, 3), (2, 6), (3, 0)):
        saved = fingerprints([in_batches(sampler)], epoch, batch, 1)
        resume(in_batches(sampler), epoch, batch, saved)


def test_another_order_within_an_epoch_is_refused() -> None:
    saved = fingerprints([in_batches(RandomSampler(range(N)))], 1, 3, 1)
    with pytest.raises(DeadlineError, match="order of samples that SequentialSampler draws for"):
        resume(in_batches(SequentialSampler(range(N))), 1, 3, saved)
    with pytest.raises(DeadlineError, match="Epoch 1 has 5 batches, and it had 7"):
        resume(in_batches(RandomSampler(range(N - 20))), 1, 3, saved)
    with pytest.raises(DeadlineError, match="batches of 4 samples"):
        resume(in_batches(RandomSampler(range(N)), 4), 1, 3, saved)


def test_a_batch_divided_by_the_slots_is_refused_at_every_place() -> None:
    for epoch, batch in ((0, 4), (1, 0)):  # in an epoch, and between two
        saved = fingerprints([in_batches(RandomSampler(range(N)), 17)], epoch, batch, 1)
        halves = in_batches(RandomSampler(range(N)), 17 // 2)
        two_ranks = type("TwoAlike", (Consensus,), {"all_equal": lambda *_: True})(0, 2)
        with pytest.raises(DeadlineError, match="the batch size of the whole step"):
            refuse_another_order([halves], epoch, batch, consensus=two_ranks, saved=saved)
    resume(halves, 1, 0, saved)  # on as many slots an epoch may have its own batch size


def test_ranks_that_draw_different_orders_are_refused() -> None:
    odd = type("TwoOdd", (Consensus,), {"all_equal": lambda *_: False})(0, 2)
    with pytest.raises(DeadlineError, match="another order in each of the trial's 2 slots"):
        refuse_another_order(
            [in_batches(RandomSampler(range(N)))], 0, 0, consensus=odd, saved=None
        )


def test_an_endless_sampler_is_refused_or_ends_at_its_limit() -> None:
    sampler = in_batches(Endless())
    sampler.samples = N
    with pytest.raises(
        DeadlineError, match=r"Endless has given \d+ samples .* limit_train_batches"
    ):
        sampler.epoch_batches(0)
    sampler.limit = 9
    assert len(sampler.epoch_batches(0)) == 9
    assert sampler.epoch_batches(0) != sampler.epoch_batches(1)
    resume(sampler, 1, 4, fingerprints([sampler], 1, 4, 1))


def test_a_sampler_that_outlasts_its_length_for_ever_is_refused() -> None:
    class Sized(Endless):
        def __len__(self) -> int:
            return N

    with pytest.raises(DeadlineError, match="let its __iter__ end with the epoch"):
        in_batches(Sized()).epoch_batches(0)


def test_a_loader_that_reads_batches_of_its_own_is_refused() -> None:
    class Repeating(DataLoader[Any]):
        """Keeps its workers by one iterator for all epochs."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.iterator = super().__iter__()

    with pytest.raises(DeadlineError, match=r"Repeating\) has begun .* persistent_workers=True"):
        elastic_loader(Repeating(TensorDataset(torch.arange(N)), 8), ElasticBatchSampler)


def test_a_loader_that_was_looked_into_before_is_dealt_all_the_same() -> None:
    data = TensorDataset(torch.arange(N))
    loader = DataLoader(data, 8, num_workers=1, persistent_workers=True)
    next(iter(loader))  # its workers are kept, with the order that they have
    elastic = elastic_loader(
        loader, lambda batches: ElasticBatchSampler(batches, rank=1, world_size=2)
    )
    assert [len(x) for (x,) in elastic] == [4, 4, 4, 4, 4, 4, 2]


@pytest.mark.parametrize("at_once", [False, True])
def test_random_numbers_of_a_read_follow_from_the_batch(at_once: bool) -> None:
    """Whichever worker reads it, and however many batches that has read before."""
    data = TensorDataset(torch.zeros(96, 8), torch.zeros(96), torch.arange(96))

    def batches(start: int, *, workers: int, epoch: int = 1, rank: int = 0) -> list[torch.Tensor]:
        elastic_data.seed_anew()
        loader = elastic_loader(
            elastic_data.augmented(data, workers, at_once=at_once),
            lambda inner: ElasticBatchSampler(inner, seed=4, rank=rank, world_size=2),
        )
        loader.batch_sampler.seek(epoch, start)  # type: ignore[union-attr]
        return [x for x, _, _ in loader]

    whole = batches(0, workers=2)
    assert len(whole) == 6 and not any(map(torch.equal, whole, whole[1:]))
    for start, workers in ((3, 2), (2, 1)):
        assert all(map(torch.equal, whole[start:], batches(start, workers=workers)))
    assert not any(map(torch.equal, whole, batches(0, workers=2, epoch=2)))
    assert not any(map(torch.equal, whole, batches(0, workers=2, rank=1)))


def test_a_dataset_that_workers_read_keeps_its_attributes() -> None:
    data = elastic_data.Augmented(TensorDataset(torch.zeros(8, 8), *2 * [torch.zeros(8)]))
    loader = elastic_loader(DataLoader(data, 4, num_workers=1), ElasticBatchSampler)
    dataset: Any = pickle.loads(pickle.dumps(copy.copy(loader.dataset)))
    assert len(dataset) == 8 and len(dataset.data) == 8 and not hasattr(dataset, "missing")
    loader.dataset.strength = 2  # type: ignore[attr-defined]
    assert vars(data)["strength"] == 2
    assert len(loader.dataset[0]) == 3
