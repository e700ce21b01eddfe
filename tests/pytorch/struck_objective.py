"""A hand-written loop on two slots, struck in each of its first segments by another death."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 12  # some remain for the last strike, however many one slot makes at the beginning
BATCHES = 10


def out_of_memory() -> None:
    raise MemoryError("no room for 9 GB")


def signalled(number: int) -> Any:
    return lambda: os.kill(os.getpid(), number)


#: By segment on two slots: which rank, and what befalls it.
STRIKES = {
    1: ({0}, signalled(signal.SIGKILL)),
    2: ({1}, signalled(signal.SIGKILL)),
    3: ({1}, signalled(signal.SIGSTOP)),  # the other one waits for it in a collective
    4: ({0, 1}, signalled(signal.SIGTERM)),
    5: ({1}, out_of_memory),
}


def segments_on_two(segment: Any) -> int:
    """How many segments on two slots have begun, this one with them; 0 in one on one slot."""
    if segment.world_size == 1:
        return 0
    folder = Path(os.environ["TRACE"])
    (folder / f"two-{segment.fence}").touch()
    begun = [int(path.name.removeprefix("two-")) for path in folder.glob("two-*")]
    return sum(fence <= segment.fence for fence in begun)


def objective(trial: Any) -> float:
    log = Path(os.environ["TRACE"]) / "steps.jsonl"
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(10 * BATCHES, 8, generator=generator, dtype=torch.float64)
    y = (x[:, :3].sum(1) > 0).long()
    torch.manual_seed(3)
    model = nn.Linear(8, 2).double()
    known = set(sys.modules)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    imported = sorted(set(sys.modules) - known)
    loader = DataLoader(TensorDataset(x, y, torch.arange(len(x))), 10, shuffle=True)
    loop = ElasticLoop(trial, model, optimizer, epochs=EPOCHS, save_every=0.05)
    segment, made = loop.segment, 0
    ranks, strike = STRIKES.get(segments_on_two(segment), (set(), None))
    for epoch in loop.epochs():
        for inputs, labels, ids in loop.batches(loader):
            time.sleep(0.01)
            made += 1
            if strike is not None and segment.rank in ranks and made == 12:
                strike()
            row = {
                "fence": segment.fence,
                "step": loop.steps,
                "ids": ids.tolist(),
                "imported": imported,
            }
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")
            optimizer.zero_grad()
            loop.backward(nn.functional.cross_entropy(loop.model(inputs), labels))
            optimizer.step()
        with torch.no_grad():
            loop.report(float(nn.functional.cross_entropy(model(x), y)) + 0.0 * epoch)
    return loop.result()
