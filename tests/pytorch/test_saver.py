"""Checkpoints that are written while training goes on: whole, in order, one at a time."""

from __future__ import annotations

import copy
import errno
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optuna_deadline_torch.consensus import ReplicatedState
from optuna_deadline_torch.decisions import SegmentController
from optuna_deadline_torch.saver import CheckpointSaver, HostMemory, write_state
from torch import nn

from optuna_deadline.checkpoints.storage import loading_code
from optuna_deadline.directives import KEEP
from optuna_deadline.segments import SegmentEnd


class SlowDisk:
    """A segment whose disk writes when it is let."""

    elastic, rank, world_size, fence, resume = True, 0, 1, 1, None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.free = threading.Event()
        self.free.set()
        self.at_once = self.most_at_once = 0
        self.published: list[int] = []
        self.directive = KEEP

    def newest(self) -> Any:
        return self.directive

    def save(
        self, write: Callable[[Path], Any], *, step: int, value: float | None, name: str
    ) -> Path:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.free.wait(30)
        write(self.folder / name)
        self.published.append(step)
        self.at_once -= 1
        return self.folder / name

    def leave(self, directive: Any) -> None:
        raise SegmentEnd(directive)


def save(saver: CheckpointSaver, step: int, wait: bool = False, **state: Any) -> None:
    saver.save(state, f"{step}.ckpt", step=step, value=None, wait=wait)


def test_what_is_written_is_of_the_step_it_was_taken_at(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path)
    saver, weights = CheckpointSaver(disk), torch.zeros(4)
    disk.free.clear()
    save(saver, 1, weights=weights, many={"nested": [weights[:2]]})
    assert saver.busy
    weights += 1.0  # the next step
    disk.free.set()
    saver.wait()
    assert not saver.busy
    found = torch.load(tmp_path / "1.ckpt", weights_only=True)
    assert torch.equal(found["weights"], torch.zeros(4))
    assert torch.equal(found["many"]["nested"][0], torch.zeros(2))


def test_without_a_thread_it_writes_before_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    saver = CheckpointSaver(SlowDisk(tmp_path))
    save(saver, 1, weights=torch.zeros(4))
    assert not saver.busy and (tmp_path / "1.ckpt").exists()
    saver.wait()


@pytest.mark.parametrize("how", ["a path", "a stream", "before 1.6"])
def test_the_line_that_loads_a_checkpoint_is_torchs_where_torch_wrote_it(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "best.ckpt"
    state = {"weights": torch.ones(3)}
    if how == "a stream":
        with path.open("wb") as file:
            torch.save(state, file)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=how == "a path")
    found: dict[str, Any] = {"torch": torch}
    exec(loading_code(path), found)
    assert torch.equal(found["checkpoint"]["weights"], torch.ones(3))


@given(waits=st.lists(st.booleans(), max_size=12))
def test_rows_come_in_the_order_of_steps_and_one_at_a_time(waits: list[bool]) -> None:
    disk = SlowDisk(Path("unused"))
    saver = CheckpointSaver(disk, verify=lambda path: None)
    saver._fill = lambda path, state: None  # type: ignore[method-assign]
    for step, wait in enumerate(waits):
        save(saver, step, wait)
        if wait:
            assert disk.published[-1] == step
    saver.wait()
    assert disk.published == list(range(len(waits)))
    assert disk.most_at_once <= 1


def test_a_slow_disk_is_waited_for_by_a_directive_and_by_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from optuna_deadline.directives import Directive, Kind

    disk = SlowDisk(tmp_path)
    pilot = SegmentController(
        disk,  # type: ignore[arg-type]
        direction="minimize",
        seed=0,
        save_every=0.0,
        take_state=lambda: {"a": torch.ones(1)},
        trained=lambda: ReplicatedState([], [], ""),
    )
    pilot.consensus.connect()
    disk.free.clear()
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            pilot.apply(pilot.agree(save=pilot.checkpoint_due), step)
    assert len(caplog.records) == 1 and "takes longer than the 0 s" in caplog.text
    assert disk.published == [] and disk.most_at_once == 1
    disk.directive = Directive(Kind.PAUSE, "for the test")
    threading.Timer(0.1, disk.free.set).start()
    pilot.reported = 4
    with pytest.raises(SegmentEnd):
        pilot.apply(pilot.agree(save=False), 5)
    assert disk.published == [-1, 4], "the one on its way, and then the one that was asked for"
    assert disk.most_at_once == 1


def test_a_state_that_would_not_load_is_told_at_the_next_step(tmp_path: Path) -> None:
    def prove(path: Path) -> None:
        raise ValueError("cannot be read")

    saver = CheckpointSaver(SlowDisk(tmp_path), prove)
    save(saver, 1, a=1)
    with pytest.raises(ValueError, match="cannot be read"):
        saver.wait()
    saver.wait()  # said once


def test_a_full_disk_is_known_by_its_own_words() -> None:
    with pytest.raises(OSError) as told:
        write_state({"a": torch.zeros(1 << 18)}, Path("/dev/full"))
    assert told.value.errno == errno.ENOSPC


def test_a_folder_that_is_gone_is_the_disks_fault(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_state({"a": torch.zeros(4)}, tmp_path / "none" / "a.ckpt")


def test_a_state_that_cannot_be_written_is_not(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        write_state({"a": lambda: None}, tmp_path / "a.ckpt")


def test_memory_is_used_again_and_no_more_is_kept_than_one_copy_needs() -> None:
    memory = HostMemory()
    state = {f"layer{i}": torch.full((64, 3), float(i)) for i in range(4)}
    places = {part.data_ptr() for part in memory.copy(state).values()}
    for part in state.values():
        part.add_(10)
    again = memory.copy(state)
    assert {part.data_ptr() for part in again.values()} == places and len(places) == 4
    assert all(torch.equal(again[name], part) for name, part in state.items())
    small = memory.copy({"layer0": state["layer0"], "new": torch.ones(5)})
    assert torch.equal(small["new"], torch.ones(5)) and len(memory._room) == 2


def leaves(one: Any) -> list[torch.Tensor]:
    if isinstance(one, torch.Tensor):
        return [one]
    if isinstance(one, dict):
        one = list(one.values())
    return (
        [leaf for item in one for leaf in leaves(item)] if isinstance(one, (list, tuple)) else []
    )


def test_a_copy_is_equal_shares_nothing_and_holds_tied_weights_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "sparse": torch.eye(3).to_sparse(),
        "cut": torch.arange(12.0).reshape(3, 4)[:, 1],
        "none": torch.empty(0),
        "plain": {"set": {1, 2}, "words": ("a", [None, 1.5]), "ordered": OrderedDict(b=1)},
    }
    memory = HostMemory()
    memory.copy({"other": torch.zeros(3, 3), "many": [torch.ones(3)] * 9})
    twin = memory.copy(state)
    before = copy.deepcopy(state)
    pairs = list(zip(leaves(twin), leaves(state), strict=True))
    assert len(pairs) > 15
    for mine, its in pairs:
        assert not its.numel() or its.is_sparse or mine.data_ptr() != its.data_ptr()
        its.add_(its)  # training goes on
    for mine, its in zip(leaves(twin), leaves(before), strict=True):
        assert mine.dtype == its.dtype and torch.equal(mine.to_dense(), its.to_dense())
    assert twin["plain"] == before["plain"] and twin["plain"]["set"] is not state["plain"]["set"]
    weights = twin["model"]
    assert weights["0.weight"] is weights["2.weight"]
    assert weights._metadata == state["model"]._metadata
    model.load_state_dict(weights)
