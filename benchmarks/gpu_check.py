"""What needs CUDA and no other test can see: real trials that take turns on one real GPU.

Two trials train in turns, so that each leaves the GPU and comes back several times; then again,
parked in between; then one of them trains alone. Checked are whose GPU a rank sees, how long a
switch takes with a CUDA context, that never two processes compute on the GPU at once, that a
parked one has nothing allocated there, and that who had to take turns ends with the same weights.
Without CUDA it says so and exits with 3; with 1 if something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna_deadline_torch import ElasticLoop
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import optuna_deadline
from benchmarks.measuring import Progress, machine, output_file, write_json
from optuna_deadline.allocation.records import SegmentRow

NO_CUDA = 3
_LOG = "OPTUNA_DEADLINE_GPU_CHECK"
_EPOCHS, _SAMPLES, _POLL = 12, 2000, 0.2


def objective(trial: Any) -> float:
    """A small network on generated data; it writes down where it ran and how it ended."""
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
        _note_parking(loop.segment, facts)
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


def _note_parking(segment: Any, facts: dict[str, Any]) -> None:
    """Write down what is allocated on the GPU each time the process has given its slot up."""
    wait = segment.park

    def park(*arguments: Any) -> None:
        _note({**facts, "what": "parked", "bytes": torch.cuda.memory_allocated()})
        wait(*arguments)

    segment.park = park


def _note(facts: dict[str, Any]) -> None:
    with Path(os.environ[_LOG]).open("a") as file:
        file.write(json.dumps(facts) + "\n")


@contextmanager
def users_of_gpus() -> Iterator[list[dict[str, int]]]:
    """How many processes the driver sees computing on each GPU, again and again."""
    seen: list[dict[str, int]] = []
    over = threading.Event()

    def look() -> None:
        query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
        while not over.wait(_POLL):
            told = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
            lines = {line for line in told.splitlines() if line.strip()}
            seen.append(Counter(line.partition(",")[0] for line in lines))

    thread = threading.Thread(target=look, daemon=True)
    if shutil.which("nvidia-smi"):
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()


def measure(folder: Path, *, gpu: int | None, seconds: float) -> dict[str, Any]:
    """All rows; on a CPU slot where ``gpu`` is None, which tests this script and no GPU."""
    log = folder / "log"
    os.environ[_LOG] = str(log)
    progress = Progress()
    try:
        progress.say("two trials in turns")
        with users_of_gpus() as users:
            switches = _startups(_train(folder / "turns", gpu, seconds, trials=2))
        progress.say("two trials in turns, parked")
        parked = _train(folder / "parked", gpu, seconds, trials=2, park=2)
        progress.say("one trial alone")
        _train(folder / "alone", gpu, seconds, trials=1)
    finally:
        progress.end()
        del os.environ[_LOG]
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    began = [note for note in notes if note["what"] == "began"]
    ended = [note["weights"] for note in notes if note["what"] == "ended"]
    left = [note["bytes"] for note in notes if note["what"] == "parked"]
    back = _startups([row for row in parked if row.fence > 1])
    stops = [row.stop for row in parked if row.outcome == "park" and row.stop is not None]
    wanted = ("", "cpu") if gpu is None else (str(gpu), "cuda:0")
    strays = [note for note in began if (note["visible"], note["device"]) != wanted]
    most = max((count for look in users for count in look.values()), default=0)
    gap = max(
        abs(a - b) / max(abs(b), 1e-9)
        for one in ended
        for a, b in zip(one, ended[-1], strict=True)
    )
    rows = [
        _row("segments that saw another device than their own", len(strays), not strays),
        _row("changes of the trial on the GPU", len(switches), len(switches) >= 3),
        _row(
            "seconds from a grant to the first step, median",
            _median(switches),
            True,
        ),
        _row(
            "processes computing on one GPU at once, at most", most if users else None, most <= 1
        ),
        _row(
            "relative difference of weights, in turns and alone",
            gap,
            len(ended) == 5 and gap < 1e-5,
        ),
        _row("times that a trial was parked", len(left), len(left) >= 3),
        _row("bytes on the GPU while parked, at most", max(left, default=None), not any(left)),
        _row("parked: seconds from the word to a free slot, median", _median(stops), bool(stops)),
        _row("parked: seconds from a grant to the first step, median", _median(back), bool(back)),
    ]
    return {
        "rows": rows,
        "gpu": gpu,
        "good": all(row["good"] for row in rows),
        "machine": machine("torch"),
    }


def _row(check: str, figure: float | None, good: bool) -> dict[str, Any]:
    return {"check": check, "figure": figure, "good": good}


def _median(seconds: list[float]) -> float | None:
    return round(statistics.median(seconds), 3) if seconds else None


def _startups(rows: list[SegmentRow]) -> list[float]:
    """Seconds to the first step of all segments but the first."""
    return [row.startup for row in rows[1:] if row.startup is not None]


def _train(
    folder: Path, gpu: int | None, seconds: float, trials: int, park: int = 0
) -> list[SegmentRow]:
    """Train so many trials in turns; all their segments."""
    from optuna_deadline.allocation.engine import open_table
    from optuna_deadline.allocation.table import AllocationTable

    folder.mkdir(parents=True)
    study = optuna.create_study(storage=f"sqlite:///{folder}/study.db", direction="minimize")
    optuna_deadline.run(
        study, f"{__file__}:objective", deadline=f"{seconds:g}s", checkpoints=folder,
        policy="round_robin", policy_parameters={"most_trials": trials, "quantum": 1.0},
        park=park, publish=False, **({"cpus": 1} if gpu is None else {"gpus": str(gpu)}),
    )  # fmt: skip
    table = AllocationTable(open_table(study), study.study_name, study._study_id)
    return table.segments()


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="where to write figures")
    parser.add_argument("--gpu", type=int, default=0, help="which one; it should be idle")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="deadline of each of three runs"
    )
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("This machine has no GPU that torch can use, so nothing was checked.")
        sys.exit(NO_CUDA)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        result = measure(Path(folder), gpu=given.gpu, seconds=given.seconds)
    table = Table("check", "figure", "")
    for row in result["rows"]:
        table.add_row(row["check"], str(row["figure"]), "good" if row["good"] else "BAD")
    Console(width=90).print(table)
    write_json(given.json, result)
    sys.exit(0 if result["good"] else 1)


if __name__ == "__main__":
    main()
