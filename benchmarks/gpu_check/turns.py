"""Trials that take turns on one device, warm and not, and one that trains alone.

The checks cover the GPU that a rank sees and the time of a switch with a CUDA context. They also
test that two processes never compute on the GPU at once, that a warm process has allocated
nothing there, and that a trial that took turns ends with the same weights.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import optuna_deadline
from benchmarks.gpu_check.watching import Row, median, most_at_once, row, users_of_gpus
from optuna_deadline.allocation.records import SegmentRow

_LOG = "OPTUNA_DEADLINE_GPU_CHECK"
_EPOCHS, _SAMPLES = 12, 2000


def objective(trial: Any) -> float:
    """Train a small network on generated data; record its devices and its end."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(_SAMPLES, 64, generator=generator)
    y = (x[:, :8].sum(1) > 0).long()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x, y), 100, shuffle=True)
    loop = ElasticLoop(trial, model, optimizer, epochs=_EPOCHS)
    facts: dict[str, Any] = {
        "trial": trial.number,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "count": torch.cuda.device_count(),
        "device": str(loop.device),
    }
    _note({**facts, "what": "began"})
    if loop.segment.elastic:
        _note_warm(loop.segment, facts)
    for _ in loop.epochs():
        for inputs, labels in loop.batches(loader):
            time.sleep(0.01)
            optimizer.zero_grad()
            scores = loop.model(inputs.to(loop.device))
            loop.backward(nn.functional.cross_entropy(scores, labels.to(loop.device)))
            optimizer.step()
        with torch.no_grad():
            loop.report(
                float(nn.functional.cross_entropy(model(x.to(loop.device)), y.to(loop.device)))
            )
    weights = [float(part.double().abs().sum()) for part in model.state_dict().values()]
    _note({**facts, "what": "ended", "weights": weights})
    return loop.result()


def _note_warm(segment: Any, facts: dict[str, Any]) -> None:
    """Record the allocated GPU memory each time the process has released its slot."""
    wait = segment.keep_warm

    def keep_warm(*arguments: Any) -> None:
        _note({**facts, "what": "warm", "bytes": torch.cuda.memory_allocated()})
        wait(*arguments)

    segment.keep_warm = keep_warm


def _note(facts: dict[str, Any]) -> None:
    with Path(os.environ[_LOG]).open("a") as file:
        file.write(json.dumps(facts) + "\n")


def measure(folder: Path, *, gpu: int | None, seconds: float) -> list[Row]:
    """All rows; ``gpu`` of None uses a CPU slot, to test this script."""
    log = folder / "log"
    os.environ[_LOG] = str(log)
    with users_of_gpus() as users:
        switches = _startups(_train(folder / "turns", gpu, seconds, trials=2))
    warm = _train(folder / "warm", gpu, seconds, trials=2, keep_warm=2)
    _train(folder / "alone", gpu, seconds, trials=1)
    del os.environ[_LOG]
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    began = [note for note in notes if note["what"] == "began"]
    ended = [note["weights"] for note in notes if note["what"] == "ended"]
    left = [note["bytes"] for note in notes if note["what"] == "warm"]
    back = _startups([row for row in warm if row.fence > 1])
    stops = [row.stop for row in warm if row.outcome == "warm" and row.stop is not None]
    wanted = ("", "cpu") if gpu is None else (str(gpu), "cuda:0")
    strays = [note for note in began if (note["visible"], note["device"]) != wanted]
    most = most_at_once(users)
    gap = max(
        abs(a - b) / max(abs(b), 1e-9)
        for one in ended
        for a, b in zip(one, ended[-1], strict=True)
    )
    return [
        row("segments that saw another device than their own", len(strays), not strays),
        row("changes of the trial on the GPU", len(switches), len(switches) >= 3),
        row(
            "seconds from a grant to the first step, median",
            median(switches),
            True,
        ),
        row("processes computing on one GPU at once, at most", most, (most or 0) <= 1),
        row(
            "relative difference of weights, in turns and alone",
            gap,
            len(ended) == 5 and gap < 1e-5,
        ),
        row("times that a trial was warm", len(left), len(left) >= 3),
        row("bytes on the GPU while warm, at most", max(left, default=None), not any(left)),
        row("warm: seconds from the word to a free slot, median", median(stops), bool(stops)),
        row("warm: seconds from a grant to the first step, median", median(back), bool(back)),
    ]


def _startups(rows: list[SegmentRow]) -> list[float]:
    """Seconds to the first step of all segments but the first."""
    return [row.startup for row in rows[1:] if row.startup is not None]


def _train(
    folder: Path, gpu: int | None, seconds: float, trials: int, keep_warm: int = 0
) -> list[SegmentRow]:
    """Train a number of trials in turns; return their segments."""
    from optuna_deadline.allocation.database.opening import open_table
    from optuna_deadline.allocation.table import AllocationTable

    folder.mkdir(parents=True)
    study = optuna.create_study(storage=f"sqlite:///{folder}/study.db", direction="minimize")
    optuna_deadline.run(
        study,
        f"{__file__}:objective",
        deadline=f"{seconds:g}s",
        checkpoints=folder,
        **{"cpus": 1} if gpu is None else {"gpu_ids": [gpu]},
        policy=f"round_robin:n_trials={trials},quantum=1.0",
        worker=optuna_deadline.WorkerOptions(keep_warm=keep_warm, dashboard=False),
    )
    table = AllocationTable(open_table(study), study.study_name, study._study_id)
    return table.segments()
