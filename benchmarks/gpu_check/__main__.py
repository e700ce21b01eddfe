"""Checks that need CUDA, on one real GPU, in at most eight minutes.

They cover the GPUs that a worker offers, the time in which ranks join, trials that take turns,
kept warm or not, and a ResNet-18 on generated images under four policies with a deadline. The
exit code is 3 without CUDA and 1 if a check fails. With --device cpu everything runs on CPU slots,
which tests this script only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_check import joining, resnet, sight, turns
from benchmarks.gpu_check.watching import Row
from benchmarks.measuring import Progress, machine, output_file, write_json

NO_CUDA = 3
#: Seconds of the deadlines of all eight runs, without their starts and ends.
_SECONDS = {"joining": 30.0, "turns": 35.0, "resnet": 72.0}
_TINY = {"joining": 25.0, "turns": 50.0, "resnet": 14.0}


def measure(folder: Path, *, gpu: int | None, tiny: bool) -> dict[str, Any]:
    """All rows.

    Args:
        folder: The folder for databases and checkpoints.
        gpu: The index of an idle GPU; None for CPU slots.
        tiny: Whether networks and deadlines are small.
    """
    seconds = _TINY if tiny else _SECONDS
    others = [index for index in range(torch.cuda.device_count()) if index != gpu]
    gpus = [] if gpu is None else [gpu, *others]
    parts: dict[str, Callable[[], list[Row]]] = {
        "which GPUs are seen": sight.measure,
        "ranks that join": partial(
            joining.measure, folder / "joining", gpus=gpus, cpus=2, seconds=seconds["joining"]
        ),
        "trials in turns": partial(
            turns.measure, folder / "turns", gpu=gpu, seconds=seconds["turns"]
        ),
        "a ResNet-18 under four policies": partial(
            resnet.measure, folder / "resnet", gpu=gpu, seconds=seconds["resnet"], tiny=tiny
        ),
    }
    rows: list[Row] = []
    progress = Progress()
    try:
        for what, part in parts.items():
            progress.write_progress(what)
            rows += part()
    finally:
        progress.end()
    good = all(one["good"] for one in rows)
    return {"rows": rows, "gpu": gpu, "good": good, "machine": machine("torch")}


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="where to write figures")
    parser.add_argument("--gpu", type=int, default=0, help="which one; it should be idle")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small networks, short deadlines")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("This machine has no GPU that torch can use, so nothing was checked.")
        sys.exit(NO_CUDA)
    gpu = given.gpu if given.device == "cuda" else None
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        result = measure(Path(folder), gpu=gpu, tiny=given.tiny)
    table = Table("check", "figure", "")
    for one in result["rows"]:
        table.add_row(one["check"], str(one["figure"]), "good" if one["good"] else "BAD")
    Console(width=120).print(table)
    write_json(given.json, result)
    sys.exit(0 if result["good"] else 1)


if __name__ == "__main__":
    main()
