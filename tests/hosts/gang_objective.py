"""A training whose every batch is dealt to the ranks of a gang, wherever these are."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import optuna_deadline

EVERY = 5  #: steps between two checkpoints
SAMPLES, BATCH = 64, 8
_STEP = 0.05  #: seconds


def train(trial: Any) -> float:
    """Least squares by gradients, until it is told to leave; each rank writes what it had."""
    rate = trial.suggest_float("rate", 0.03, 0.03)  # asked of the worker that leads
    segment = optuna_deadline.segment(trial)
    rank, ranks = segment.rank, segment.world_size
    facts = {
        "host": socket.gethostname(), "number": trial.number, "fence": segment.fence,
        "rank": rank, "ranks": ranks, "node": int(os.environ["NODE_RANK"]),
        "local": int(os.environ["LOCAL_RANK"]), "pid": os.getpid(),
    }  # fmt: skip
    name = f"{trial.number}-{segment.fence}-{rank}"
    log = (Path(os.environ["HOST_LOG"]) / name).open("a", buffering=1)
    if ranks > 1:
        dist.init_process_group("gloo")
    random_numbers = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 4, generator=random_numbers, dtype=torch.float64)
    targets = inputs @ torch.arange(1.0, 5.0, dtype=torch.float64)
    weights, first = torch.zeros(4, dtype=torch.float64), 0
    if segment.resume:
        saved = json.loads(segment.resume.read_text())
        weights, first = torch.tensor(saved["weights"], dtype=torch.float64), saved["step"] + 1
    log.write(json.dumps({**facts, "first": first}) + "\n")
    for step in range(first, 100_000):
        time.sleep(_STEP)
        batch = random.Random(step).sample(range(SAMPLES), BATCH)
        mine = batch[rank::ranks]
        wrong = inputs[mine] @ weights - targets[mine]
        told = torch.cat([inputs[mine].T @ wrong, (wrong**2).sum()[None]])
        if ranks > 1:
            dist.all_reduce(told)
        weights, loss = weights - rate * told[:4] / BATCH, float(told[4]) / BATCH
        log.write(json.dumps([time.monotonic(), step, mine, loss]) + "\n")
        trial.report(-loss, step)
        directive = segment.directive()
        if directive.leave or step % EVERY == EVERY - 1:
            text = json.dumps({"step": step, "weights": weights.tolist()})
            segment.save(lambda path, t=text: path.write_text(t), step=step, value=-loss)
        if directive.leave:
            if ranks > 1:
                dist.barrier()  # who leaves while the first one writes would end it
            segment.leave(directive)
    return 0.0
