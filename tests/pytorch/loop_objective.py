"""A hand-written loop whose every step is kept, for real workers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10


def objective(trial: Any) -> float:
    """One fixed configuration: what changes is the number of slots alone."""
    log = Path(os.environ["TRACE"]) / "steps.jsonl"
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(200, 8, generator=generator, dtype=torch.float64)
    y = (x[:, :3].sum(1) > 0).long()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(x, y, torch.arange(200)), 20, shuffle=True)
    even = "EVEN" in os.environ
    loop = ElasticLoop(trial, model, optimizer, epochs=EPOCHS, equal_shards=even)
    for epoch in loop.epochs():
        for inputs, labels, ids in loop.batches(loader):
            time.sleep(0.02)
            _strike(loop)
            _wait_until_moved(loop)
            row = {
                "step": loop.steps,
                "epoch": epoch,
                "world": loop.segment.world_size,
                "ids": ids.tolist(),
            }
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")
            optimizer.zero_grad()
            loop.backward(nn.functional.cross_entropy(loop.model(inputs), labels))
            optimizer.step()
        with torch.no_grad():
            loop.report(float((model(x).argmax(1) == y).double().mean()))
    return loop.result()


def _strike(loop: ElasticLoop) -> None:
    """If ``DIES`` is set, kill this process once, at the plan's order to leave its one slot."""
    struck = Path(os.environ["TRACE"]) / "struck"
    if "DIES" in os.environ and loop.epoch == 3 and loop.batch == 2 and not struck.exists():
        struck.touch()
        _wait_for(lambda: loop.segment.newest().leave)
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_until_moved(loop: ElasticLoop) -> None:
    """In the middle of an epoch, wait for the number of slots that the plan is to give by then."""
    slots = {4: 2, 7: 1}.get(loop.epoch) if "MOVES" in os.environ and loop.batch == 5 else None
    if slots not in (None, loop.segment.world_size):
        _wait_for(lambda: loop.segment.newest().leave)


def _wait_for(holds: Callable[[], bool]) -> None:
    """Wait a minute at most."""
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
