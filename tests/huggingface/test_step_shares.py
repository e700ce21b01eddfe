"""Several slots train what one slot would train in each step."""

from __future__ import annotations

import math
from itertools import chain
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_bert
import torch
from accelerate.data_loader import BatchSamplerShard
from optuna_deadline_torch.seeding import Generators
from optuna_deadline_transformers.draws import SeededTraining
from optuna_deadline_transformers.evaluation import seed_evaluations
from optuna_deadline_transformers.losses import divides_by_itself
from optuna_deadline_transformers.slots import StepBatch
from optuna_deadline_transformers.step_shares import StepShares, share_steps
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from transformers import Trainer


@pytest.mark.parametrize(
    ("whole", "slots", "own"),
    [
        ((32, 1), 2, (16, 1)),
        ((8, 4), 2, (8, 2)),
        ((8, 4), 8, (4, 1)),
        ((8, 6), 4, (4, 3)),
        ((9, 1), 2, None),
        ((9, 2), 2, (9, 1)),
    ],
)
def test_slots_share_the_passes_of_a_step_first_and_then_their_samples(
    whole: tuple[int, int], slots: int, own: tuple[int, int] | None
) -> None:
    assert StepBatch(*whole).on(slots) == (own and StepBatch(*own))


def gradients(steps: list[list[list[float]]]) -> list[float]:
    """A gradient of each step: the mean over its passes of the mean over their samples."""
    return [mean(mean(one) for one in passes) for passes in steps]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rows", [*range(16, 33), 61])
@pytest.mark.parametrize(
    ("whole", "slots"), [((8, 1), 2), ((4, 2), 2), ((4, 2), 4), ((2, 4), 2), ((3, 3), 3)]
)
def test_the_slots_train_what_one_would_train_in_each_step(
    whole: tuple[int, int], slots: int, rows: int, drop_last: bool
) -> None:
    values = torch.rand(rows, generator=torch.Generator().manual_seed(rows)).tolist()

    def by_steps(batches: Any, passes: int) -> list[list[list[float]]]:
        read = [[values[index] for index in one] for one in batches]
        return [read[start : start + passes] for start in range(0, len(read), passes)]

    alone, own = StepBatch(*whole), StepBatch(*whole).on(slots)
    assert own is not None
    plain = gradients(by_steps(BatchSampler(range(rows), whole[0], drop_last), whole[1]))
    inner = BatchSampler(range(rows), own.per_device, drop_last)
    shares = [StepShares(inner, alone, slots, rank) for rank in range(slots)]
    if shares[0].impossible:
        assert whole[1] > 1 and rows % alone.samples
        return
    of_slots = [gradients(by_steps(one, own.accumulated)) for one in shares]
    assert [mean(step) for step in zip(*of_slots, strict=True)] == pytest.approx(plain)
    # The trainer has counted the steps by accelerate's batches, before they are replaced.
    counted = len(BatchSamplerShard(inner, slots, 0))
    assert math.ceil(counted / own.accumulated) == len(plain)
    assert {counted} == {*map(len, shares)} == {len(list(one)) for one in shares}


def test_an_order_is_the_same_where_accelerate_gives_a_sampler_its_generator() -> None:
    def order(generator: torch.Generator | None) -> list[int]:
        sampler = RandomSampler(range(8), generator=generator)
        loader = DataLoader(list(range(8)), 4, sampler=sampler)  # type: ignore[arg-type]
        SeededTraining(1, 0, loader, Generators())
        return [*chain(*loader.batch_sampler)]

    assert order(None) == order(torch.Generator()) != [*range(8)]


def test_the_slots_draw_an_evaluations_order_alike_and_a_step_by_themselves() -> None:
    def drawn(rank: int) -> tuple[int, int]:
        loader = DataLoader(list(range(8)), 4)  # type: ignore[arg-type]
        seeds, place = (
            SeededTraining(1, rank, loader, Generators()),
            SimpleNamespace(global_step=3),
        )
        seeds.begin_step(place)
        trainer: Any = SimpleNamespace(get_eval_dataloader=torch.initial_seed)
        seed_evaluations(trainer, lambda: seeds.begin_evaluation(place))
        return torch.initial_seed(), trainer.get_eval_dataloader()

    (step, order), (other_step, other_order) = drawn(0), drawn(1)
    assert order == other_order and step != other_step


OF_ARGUMENTS = {"batch_size": 8}
OTHERS = [{"batch_size": 4}, {"batch_sampler": [[0, 1], [2, 3]]}]


def loader_of(options: Any, slots: int) -> DataLoader[Any]:
    """As accelerate divides it."""
    loader = DataLoader(list(range(32)), **options)  # type: ignore[arg-type]
    if slots > 1:
        shard = BatchSamplerShard(loader.batch_sampler, slots, 0)
        object.__setattr__(loader, "batch_sampler", shard)
    return loader


@pytest.mark.parametrize("options", [OF_ARGUMENTS, *OTHERS])
@pytest.mark.parametrize("slots", [1, 2])
def test_only_batches_of_the_arguments_size_are_shared(options: Any, slots: int) -> None:
    own = StepBatch(8, slots)
    shares, why = share_steps(loader_of(options, slots), own, slots, 0)
    assert (why is None) == (options == OF_ARGUMENTS)
    assert (shares is not None) == (why is None and slots > 1)


def test_a_loader_that_each_slot_reads_whole_is_not_shared() -> None:
    _, why = share_steps(loader_of(OF_ARGUMENTS, 1), StepBatch(8, 2), 2, 0)
    assert why is not None and "prepared" in why


class DividesByItself(Trainer):
    """By the labels of all slots."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, num_items_in_batch: Any = 1) -> Any:
        return model(**inputs).loss.sum() / num_items_in_batch


class DividesAsOnOneSlot(DividesByItself):
    """By the labels of a slot."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, num_items_in_batch: Any = 1) -> Any:
        loss = model(**inputs).loss.sum() / num_items_in_batch
        return loss * self.accelerator.num_processes


@pytest.mark.parametrize(
    ("kind", "named"),
    [(Trainer, False), (tiny_bert.CountingTrainer, False), (DividesByItself, True),
     (DividesAsOnOneSlot, False)],
)  # fmt: skip
def test_a_loss_that_is_divided_by_the_labels_of_all_slots_is_named(
    kind: type[Trainer], named: bool
) -> None:
    why = divides_by_itself(kind.__new__(kind))
    assert named == ("num_processes" in (why or ""))
