"""What a module keeps in plain attributes goes on with its trial."""

from __future__ import annotations

import itertools
import signal
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from enum import Flag
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import elastic_nets
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from chains import assert_same, chain
from elastic_harness import Plan, PlayedSegment, PlayedTrial, Seen
from elastic_training import Net
from optuna_deadline_lightning.plain_state import PlainState
from optuna_deadline_torch.packing import Unpackable, address, packed, put, same, unpacked
from torch import nn

from optuna_deadline.segments import SegmentEnd


class Access(Flag):
    READ, WRITE = 1, 2


CPU = torch.device("cpu")
NOTHING: dict[str, Any] = {"all": {}, "each": [], "asked": {}, "later": []}
VALUES: dict[str, Any] = {
    "none": None,
    "members of enumerations": [elastic_nets.Phase.HOT, Access.READ | Access.WRITE],
    "numbers": [True, 3, 0.1, float("inf")],
    "texts": ("a", "b"),
    "a losses' list": [torch.tensor(0.5), torch.tensor(0.25)],
    "tensors of several kinds": [torch.ones(2), torch.ones(3), torch.ones(3, dtype=torch.long)],
    "an empty list": [],
    "a set": {1, "a"},
    "a deque": deque([1, 2, 3], maxlen=3),
    "a hidden state": (torch.ones(2, 3), torch.zeros(2, 3)),
    "a dict": {"a": [1], 2: {"b": torch.ones(1)}},
    "lists by name": defaultdict(list, {"a": [1]}),
    "an ordered dict": OrderedDict(a=1),
    "counts": Counter("aab"),
    "an array": np.arange(6.0).reshape(2, 3).T,
    "a number of NumPy's": [np.float32(0.5), np.int64(3), np.bool_(True)],
}


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", VALUES)
def test_a_plain_value_is_in_a_checkpoint_and_comes_back(tmp_path: Path, name: str) -> None:
    node = packed(VALUES[name])
    torch.save(node, tmp_path / "one.pt")
    read = torch.load(tmp_path / "one.pt", weights_only=True)
    assert same(read, node)
    again = unpacked(read, CPU)
    assert type(again) is type(VALUES[name]) and same(packed(again), node)
    if isinstance(again, deque | defaultdict):
        for kept in ("maxlen", "default_factory"):
            assert getattr(again, kept, 0) == getattr(VALUES[name], kept, 0)
    if isinstance(again, set):  # its order is that of its insertions where hashes collide
        assert again == VALUES[name]
    else:
        assert str(again) == str(VALUES[name])


@pytest.mark.parametrize(
    "value",
    [
        [object()],
        {object(): 1},
        Plan("").trainer.get,
        np.array(["a"]),
        torch.eye(2).to_sparse(),
        [0] * 200_000,
        torch.zeros(5_000_000),
    ],
    ids=["object", "key", "function", "texts", "sparse", "long", "large"],
)
def test_what_a_checkpoint_had_better_not_hold_is_not_packed(value: Any) -> None:
    with pytest.raises(Unpackable):
        packed(value)


def test_views_of_what_is_saved_elsewhere_and_endless_lists_are_not_packed() -> None:
    weight, endless = torch.ones(3, 2), list[Any]()
    endless.append(endless)
    for value in ([weight[1:]], endless):
        with pytest.raises(Unpackable):
            packed(value, {address(weight)})


def test_a_value_comes_back_in_the_object_that_others_hold() -> None:
    trained = torch.zeros(2, requires_grad=True)
    for old, new in (
        ([1], [2, 3]),
        (deque([1], 5), deque([2])),
        ({1}, {2}),
        (Counter("a"), Counter("bb")),
        (defaultdict(lambda: 3), defaultdict(None, a=1)),
        (trained, torch.ones(2, requires_grad=True)),
    ):
        assert put(new, old) is old and str(old).split("(")[-1] != ""
        assert [*old] == [*new]
    assert trained.tolist() == [1, 1] and trained.is_leaf
    for old, new in ((1, 2), ((1,), (2,)), ([1], None), (torch.zeros(1), torch.ones(1))):
        assert put(new, old) is new


# ---- of several slots


def slot(rank: int, ranks: int, module: pl.LightningModule) -> PlainState:
    told: set[str] = set()
    return PlainState(
        SimpleNamespace(  # type: ignore[arg-type]
            lightning_module=module,
            global_rank=rank,
            world_size=ranks,
            strategy=SimpleNamespace(root_device=CPU),
            callbacks=[],
            optimizers=[],
            lr_scheduler_configs=[],
            datamodule=None,
            train_dataloader=None,
            evaluating=False,
            fit_loop=SimpleNamespace(max_epochs=1, epoch_loop=SimpleNamespace(max_steps=-1)),
        ),
        lambda topic: rank == 0 and topic not in told and not told.add(topic),  # type: ignore[func-returns-value]
    )


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}


class Collecting(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[Any] = []
        self.count = 0
        self.part = Part()


def trained(*losses: list[Any]) -> dict[str, Any]:
    """What a checkpoint of so many slots has, made by the first one."""
    slots = [slot(rank, len(losses), Collecting()) for rank in range(len(losses))]
    for one in slots:
        one.begin()
    states: list[Any] = []
    for one, mine in zip(slots[::-1], losses[::-1], strict=True):
        module: Any = one._trainer.lightning_module
        module.losses += mine
        module.count += 1
        module.part.seen["a"] = 2
        found = one.state(SimpleNamespace(gather=partial(gathered, states)))  # type: ignore[arg-type]
    return found


def gathered(states: list[Any], own: Any) -> list[Any]:
    states.insert(0, own)
    return states


def resumed(saved: dict[str, Any], ranks: int) -> list[Any]:
    modules = [Collecting() for _ in range(ranks)]
    for rank, module in enumerate(modules):
        one = slot(rank, ranks, module)
        one.load(saved)
        one.begin()
        assert (module.count, module.part.seen) == (1, {"a": 2})
    return [module.losses for module in modules]


def test_each_of_as_many_slots_has_its_own_and_other_numbers_the_first_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    saved = trained([1.0], [2.0])
    assert resumed(saved, 2) == [[1.0], [2.0]]
    assert resumed(saved, 1) == [[1.0]]
    assert resumed(saved, 3) == [[1.0]] * 3
    [record] = [one for one in caplog.records if one.name.startswith("optuna_deadline")]
    assert "Each of the trial's 2 slots keeps attributes of the module (losses)" in record.message


def test_what_slots_have_alike_and_what_one_has_is_not_worth_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert resumed(trained([1.0], [1.0]), 3) == [[1.0]] * 3
    assert resumed(trained([1.0]), 2) == [[1.0]] * 2
    assert not [one for one in caplog.records if one.name.startswith("optuna_deadline")]


def test_a_checkpoint_of_before_the_first_step_has_what_there_is() -> None:
    alone: Any = SimpleNamespace(gather=lambda own: [own])
    first = slot(0, 1, Collecting())
    assert first.state(alone) == NOTHING
    first.load(first.state(alone))  # as a search for a learning rate does
    module: Any = first._trainer.lightning_module
    first.begin_check()
    module.count += 1
    first.end_check()
    saved = first.state(alone)
    assert saved == NOTHING | {"all": {"count": 1}, "later": ["count"]}
    again = slot(0, 1, Collecting())
    again.load(saved)
    assert again.state(alone) == saved


def test_an_object_of_torch_that_has_a_state_goes_on_by_it() -> None:
    def scaled() -> Any:
        module: Any = Collecting()
        module.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        return slot(0, 1, module)

    alone: Any = SimpleNamespace(gather=lambda own: [own])
    first, second = scaled(), scaled()
    first.begin()
    scaler = first._trainer.lightning_module.scaler
    scaler.scale(torch.ones(1))
    scaler.update(4.0)
    second.load(first.state(alone))
    second.begin()
    assert second._trainer.lightning_module.scaler.get_scale() == 4.0


def test_a_list_that_cannot_be_kept_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class Restoring(Collecting):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["losses"] = self.losses

    for module in (Restoring(), Collecting()):
        one, alone = slot(0, 1, module), SimpleNamespace(gather=lambda own: [own])
        one.begin()
        for _ in range(2):
            module.losses.append(object())
            assert one.state(alone) == NOTHING  # type: ignore[arg-type]
    [record] = [one for one in caplog.records if one.name.startswith("optuna_deadline")]
    assert "These values start again" in record.message and ": losses." in record.message


# ---- in a fit


def segments(folder: Path, plan: Plan, leave_at: int | None, net: type[Net]) -> list[Seen]:
    """Train to the end in this process; each segment leaves after ``leave_at``."""
    folder.mkdir()
    found: list[Seen] = []
    resume = None
    for fence in range(1, 60):
        now = replace(plan, folder=str(folder), fence=fence, leave_at=leave_at, resume=resume)
        segment = PlayedSegment(now, rank=0)
        found.append(seen := Seen())
        try:
            elastic_nets.elastic_training.train(now, PlayedTrial(segment), segment, seen, net)
        except SegmentEnd:
            resume = segment.published[-1]["path"]
        else:
            return found
    raise AssertionError("it never ends")


class Keeping(Net):
    """Keeps all that is asked for in plain attributes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.losses: list[torch.Tensor] = []
        self.also = self.losses
        self.counted, self._validations, self.history = 0, 0, deque[float](maxlen=5)
        self.begun = 0
        self.own = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        self.mine = 0
        self.seen["kept"] = []

    def on_train_start(self) -> None:
        self.losses.clear()
        self.begun += 1

    def on_train_epoch_start(self) -> None:
        self.outputs: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx) * (1 + self.own.sum() / 100)
        self.losses.append(loss.detach())
        self.outputs.append(loss.item())
        self.counted += 1
        self.mine += 1
        self.history.append(loss.item())
        self.last = loss
        return loss

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self._validations += 1

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.seen["kept"].append(
            (
                float(torch.stack(self.also).mean()),
                len(self.outputs),
                self.counted,
                self.mine,
                [*self.history],
                self._validations,
                self.begun,
                float(self.own),
            )
        )
        self.losses.clear()

    def configure_optimizers(self) -> Any:
        [optimizer], schedules = super().configure_optimizers()
        optimizer.add_param_group({"params": [self.own]})
        return [optimizer], schedules

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = self.mine

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.mine = checkpoint["mine"] + 1000  # in a way of its own


def test_a_fit_that_is_left_after_each_step_keeps_them(tmp_path: Path) -> None:
    plan = Plan("", epochs=2, reports=1)
    [still] = segments(tmp_path / "still", plan, None, Keeping)
    left = segments(tmp_path / "left", plan, 0, Keeping)
    assert len(left) > 10
    kept = [one for seen in left for one in seen["kept"]]
    assert len(kept) == len(still["kept"]) == 2
    mine = 3
    for one, other in zip(still["kept"], kept, strict=True):
        assert one[:mine] + one[mine + 1 :] == other[:mine] + other[mine + 1 :]
        assert other[mine] > 1000 > one[mine], "the module restores it by itself"


@pytest.mark.slow
def test_as_many_slots_go_on_with_their_own_lists(tmp_path: Path) -> None:
    def epochs(segments: list[list[dict[str, Any]]], rank: int) -> list[Any]:
        return [epoch for ranks in segments for epoch in ranks[rank]["epochs"]]

    plan = Plan("", training="elastic_nets", net="list")
    still = chain(tmp_path / "still", plan, [(2, None)])
    left = chain(tmp_path / "left", plan, [(2, 4), (2, 9), (2, None)])
    assert_same(still, left, tolerance=0.0)
    assert [epochs(still[0], rank) for rank in (0, 1)] == [epochs(left[0], one) for one in (0, 1)]
    assert epochs(left[0], 0) != epochs(left[0], 1)


@pytest.mark.parametrize(
    ("net", "named"),
    [
        ("grows", "more.weight"),
        ("swaps its optimizer", "optimizer 0"),
        ("renames a part", "the name chosen"),
        ("replaces a layer", "the class of body.1"),
    ],
)
def test_what_a_new_process_would_not_build_ends_where_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, net: str, named: str
) -> None:
    plan = Plan("", epochs=3, reports=1, samples=100, optimizer="adam")
    kind = elastic_nets.NETS[net]
    [still] = segments(tmp_path / "still", plan, None, kind)
    caplog.clear()
    left = segments(tmp_path / "left", plan, 0, kind)
    last = torch.load(tmp_path / "left" / "final.pt")
    for name, value in torch.load(tmp_path / "still" / "final.pt").items():
        assert torch.equal(value, last[name]), name
    epochs = [step["epoch"] for step in left[-1]["steps"]]
    assert set(epochs) == {1, 2} and len(left) > 3, "each step of epoch 0 was left"
    assert still["global_step"] == left[-1]["global_step"]
    [line] = [one.getMessage() for one in caplog.records if "keeps its slots" in one.message]
    assert named in line and "Build everything in __init__" in line


def test_a_count_that_no_checkpoint_can_hold_is_named(caplog: pytest.LogCaptureFixture) -> None:
    module: Any = Collecting()
    module.steps, module.still = itertools.count(), itertools.count()
    module.drawn = (number for number in range(9))
    one, alone = slot(0, 1, module), SimpleNamespace(gather=lambda own: [own])
    one.begin()
    next(module.steps)
    next(module.drawn)
    assert one.state(alone) == NOTHING  # type: ignore[arg-type]
    [record] = [one for one in caplog.records if one.name.startswith("optuna_deadline")]
    assert "comes back: drawn, steps. They" in record.message
