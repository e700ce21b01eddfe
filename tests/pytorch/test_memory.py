"""A training's tensors leave their device and come back: bitwise, and freed meanwhile.

On this machine the device is the CPU; the memory that is given up is its own.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna_deadline_torch import warm_memory
from optuna_deadline_torch.warm_memory import (
    DeviceMemory,
    TrainingObjects,
    frame_locals,
    tensors,
)
from torch import nn

pytestmark = [
    pytest.mark.slow_names(r"^test_warm_between_two_steps.*\[(?!adam\]|sgd|momentum)"),
    pytest.mark.nightly_but(r"lbfgs|fused"),
]

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adamw-tensor-lr": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), foreach=False),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3, history_size=4),
}


def nowhere_else(device: torch.device) -> bool:
    return True


class Training:
    """A network with buffers, a recurrent part and tied weights."""

    def __init__(self, make: Any) -> None:
        torch.manual_seed(3)
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.head.weight
        self.model = nn.ModuleList([self.lstm, self.norm, self.head, self.again])
        self.optimizer = make(self.model.parameters())

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(10, 4, 6, generator=generator)

        def loss() -> torch.Tensor:
            self.optimizer.zero_grad()
            inner = self.norm(self.lstm(x)[0][:, -1])
            value = self.again(self.head(inner).tanh()).pow(2).mean()
            value.backward()
            return value

        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(loss)
        else:
            loss()
            self.optimizer.step()

    def state(self) -> Any:
        return copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_warm_between_two_steps_the_next_ones_are_as_without(name: str, tmp_path: Path) -> None:
    woken, warm = Training(OPTIMIZERS[name]), Training(OPTIMIZERS[name])
    for number in range(6):
        woken.step(number)
        warm.step(number)
        before = warm.state()
        kept = DeviceMemory([warm.model, warm.optimizer], given_up=nowhere_else)
        state = [warm.model.state_dict(), warm.optimizer.state_dict()]
        size = kept.bytes
        kept.offload()
        held = [one for one in tensors([warm.model, warm.optimizer])]
        assert len(held) > 7 and not any(one.untyped_storage().nbytes() for one in held)
        assert kept.bytes == size > sum(p.nbytes for p in warm.model.parameters())
        torch.save(kept.readable(state), tmp_path / "durable.pt")
        kept.restore()
        assert same(warm.state(), before)
        assert same(torch.load(tmp_path / "durable.pt", weights_only=True), before)
    assert same(warm.state(), woken.state())
    assert warm.again.weight is warm.head.weight


def test_sparse_gradients_stay_where_they_are_and_their_optimizer_goes_on() -> None:
    def trained(keep_warm: bool) -> Any:
        torch.manual_seed(1)
        table = nn.Embedding(20, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), 0.1)
        for number in range(4):
            optimizer.zero_grad()
            table(torch.tensor([number, number + 3])).pow(2).sum().backward()
            optimizer.step()
            if keep_warm:
                kept = DeviceMemory([table, optimizer], given_up=nowhere_else)
                state = kept.readable
                kept.offload()
                assert not table.weight.untyped_storage().nbytes()
                state(optimizer.state_dict())
                kept.restore()
        return [table.state_dict(), optimizer.state_dict()]

    assert same(trained(True), trained(False))


def test_a_gradient_scaler_goes_along() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        before = scaler.state_dict()
        kept = DeviceMemory([model, optimizer, scaler], given_up=nowhere_else)
        kept.offload()
        assert scaler._scale is not None and not scaler._scale.untyped_storage().nbytes()
        kept.restore()
        assert scaler.state_dict() == before
    assert scaler.get_scale() == 4096.0


def test_views_and_what_hooks_name_go_along() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.history = {"means": [torch.arange(6.0)]}
            self.told: list[str] = []
            self._mine = torch.full((5,), 2.0)

        def on_keep_warm(self) -> list[torch.Tensor]:
            self.told.append("warm")
            return hidden

        def on_wake(self) -> None:
            self.told.append("wake")

    hidden = [torch.ones(3)]
    model = Model()
    view = model.history["means"][0][2:4]
    holdings = TrainingObjects([model])
    warm_memory.is_device_memory, before = nowhere_else, warm_memory.is_device_memory
    try:
        kept = holdings.memory()
    finally:
        warm_memory.is_device_memory = before
    kept.offload()
    empty = [model.layer.weight, view, hidden[0], model._mine]
    assert not any(one.untyped_storage().nbytes() for one in empty)
    kept.restore()
    holdings.after_restore()
    assert model.told == ["warm", "wake"]
    assert view.tolist() == [2.0, 3.0] and hidden[0].tolist() == [1.0] * 3


def test_what_a_loop_holds_in_its_hands_is_found_and_code_of_others_is_not_looked_into() -> None:
    class Beyond:
        def __init__(self) -> None:
            self.tensor = torch.ones(2)

    def loop() -> list[torch.Tensor]:
        batch = {"x": torch.zeros(2), "labels": [torch.zeros(3)]}
        assert batch
        return list(tensors(frame_locals()))

    outer = torch.zeros(7)
    assert {7, 2, 3} <= {one.numel() for one in loop()} and outer.numel() == 7
    assert not list(tensors([[Beyond()]], beyond=(Beyond,)))
    assert [one.numel() for one in tensors([[Beyond()]])] == [2]


def test_on_the_cpu_nothing_has_to_move() -> None:
    model = nn.Linear(3, 3)
    kept = DeviceMemory([model])
    kept.offload()
    assert kept.bytes == 0 and model.weight.untyped_storage().nbytes()
    copied = kept.readable(model.state_dict())
    kept.restore()
    assert same(copied, model.state_dict())
    assert copied["weight"].data_ptr() != model.weight.data_ptr()


def test_where_the_host_has_no_room_it_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(1024, 1024)
    told = tmp_path / "meminfo"
    monkeypatch.setattr(warm_memory, "_MEMINFO", told)
    kept = DeviceMemory([model], given_up=nowhere_else)
    told.write_text("MemTotal:  40000 kB\nMemAvailable:  9000 kB\n")
    assert kept.fits()  # 4 MB of 9 leaves more than a tenth of 40
    told.write_text("MemTotal:  40000 kB\nMemAvailable:  8000 kB\n")
    assert not kept.fits()
    told.unlink()
    assert kept.fits()
