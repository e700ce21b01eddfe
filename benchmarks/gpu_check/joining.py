"""The time in which the ranks of a segment join: NCCL on GPUs, gloo on CPU slots.

With two devices, a trial changes between one and two of them. NCCL refuses two ranks on one GPU.
So with a single GPU two trials take turns, and each segment has a communicator of one rank.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import optuna
import torch
import torch.distributed as dist
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import optuna_deadline
from benchmarks.gpu_check.watching import Row, median, row
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.policies import Plan, Run, Snapshot

_LOG = "OPTUNA_DEADLINE_GPU_CHECK_JOINING"
_EPOCHS = 10


def objective(trial: Any) -> float:
    """Train a few batches per epoch; the first rank records the time in which the ranks joined."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(256, 64, generator=generator)
    y = (x[:, :8].sum(1) > 0).long()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began = time.monotonic()
    loop = ElasticLoop(trial, model, optimizer, epochs=_EPOCHS)
    alone = loop.segment.world_size == 1
    backend = "nccl" if loop.device.type == "cuda" else "gloo"
    if alone:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, rank=0, world_size=1, store=store)
    dist.all_reduce(torch.ones(1, device=loop.device))
    if loop.device.type == "cuda":
        torch.cuda.synchronize()
    if loop.segment.rank == 0:
        took = {"ranks": loop.segment.world_size, "seconds": time.monotonic() - began}
        with Path(os.environ[_LOG]).open("a") as file:
            file.write(json.dumps({**took, "backend": backend}) + "\n")
    if alone:
        dist.destroy_process_group()
    for _ in loop.epochs():
        for inputs, labels in loop.batches(DataLoader(TensorDataset(x, y), 32, shuffle=True)):
            time.sleep(0.05)
            optimizer.zero_grad()
            scores = loop.model(inputs.to(loop.device))
            loop.backward(nn.functional.cross_entropy(scores, labels.to(loop.device)))
            optimizer.step()
        loop.report(0.0)
    return loop.result()


def resizing(snapshot: Snapshot) -> Plan:
    """One trial, on two slots after every other report."""
    if not snapshot.trials:
        return Plan(start=1, gate_open=True)
    [trial] = snapshot.trials
    if not trial.alive:
        return Plan(gate_open=False)
    return Plan({trial.number: Run(1 + len(trial.reports) % 2, "its turn")})


def measure(folder: Path, *, gpus: list[int], cpus: int, seconds: float) -> list[Row]:
    """Rows for each number of ranks up to the number of devices, at most two."""
    folder.mkdir(parents=True)
    log = folder / "log"
    os.environ[_LOG] = str(log)
    study = optuna.create_study(storage=f"sqlite:///{folder}/study.db", direction="minimize")
    slots: Any = {"gpu_ids": gpus[:2]} if gpus else {"cpus": cpus}
    most = min(len(gpus) or cpus, 2)
    if most == 1:
        slots |= {"policy_parameters": {"n_trials": 2, "quantum": 1.0}}
    optuna_deadline.run(
        study,
        f"{__file__}:objective",
        deadline=f"{seconds:g}s",
        checkpoints=folder,
        **slots,
        policy=resizing if most > 1 else "round_robin",
        worker=optuna_deadline.WorkerOptions(dashboard=False),
    )
    del os.environ[_LOG]
    table = AllocationTable(open_table(study), study.study_name, study._study_id)
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    sizes = [segment.slots for segment in table.segments()]
    rows = [row("ranks in the segments", str(sizes), len(sizes) >= 3)]
    for ranks in range(1, most + 1):
        seconds_of = [note["seconds"] for note in notes if note["ranks"] == ranks]
        backend = next((note["backend"] for note in notes if note["ranks"] == ranks), "")
        name = f"{backend}: seconds until {ranks} rank(s) have joined and reduced, median"
        rows.append(row(name, median(seconds_of), bool(seconds_of)))
    return rows
