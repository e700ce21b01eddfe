"""What an objective draws at random before it trains does not change when its trial moves."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optuna_deadline.rank.channel import channel_pair
from optuna_deadline.rank.messages import Returned
from optuna_deadline.rank.process import LocalRank, RankSpec, run_rank

torch = pytest.importorskip("torch")
_CONTEXT = multiprocessing.get_context("fork")


def splits(trial: Any) -> float:
    """Which samples are held out, by each of the three libraries, as one number."""
    by_python = random.sample(range(100), 3)
    by_numpy = np.random.permutation(100)[:3].tolist()
    by_torch = torch.utils.data.random_split(range(100), [3, 97])[0].indices
    return float("".join(f"{index:02d}" for index in (by_python[0], by_numpy[0], *by_torch)))


def held_out(folder: Path, number: int, fence: int = 1, rank: int = 0) -> float:
    """Run a rank of its own, in a process whose random numbers stand elsewhere each time."""
    spec = RankSpec(
        number=number,
        rank=rank,
        world_size=2,
        rendezvous=("127.0.0.1", 1),
        local=LocalRank(rank, 2, 0),
        fence=fence,
        folder=str(folder),
        store=None,
        resume=None,
        devices=("cpu:0", "cpu:1"),
        direction="minimize",
        trusted_until=time.monotonic() + 600,
        grace=1.0,
    )
    random.seed(fence), np.random.seed(fence), torch.manual_seed(10 * fence + rank)
    ours, theirs = channel_pair()
    process = _CONTEXT.Process(target=run_rank, args=(theirs, spec, splits))
    process.start()
    theirs.close()
    end = ours.recv()
    assert isinstance(end, Returned), end
    ours.close()
    process.join()
    return float(end.value)


def test_a_split_in_the_objective_is_the_same_in_each_segment_and_slot(tmp_path: Path) -> None:
    first = held_out(tmp_path, 3)
    assert held_out(tmp_path, 3, fence=2) == first
    assert held_out(tmp_path, 3, fence=3, rank=1) == first
    assert held_out(tmp_path, 4) != first
