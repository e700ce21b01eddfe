"""Pollux's step-time profiles: the true S(k) of real models, including falling ones.

A folder for each model holds ``scalability.csv`` (num_nodes, num_replicas, local_bsz, step_time),
``placements.csv`` (placement, local_bsz, step_time) or both. A placement's digits are the replicas
on each node.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import Speedup

KIND = "pollux"
FILES = ("placements.csv", "scalability.csv")

Profile = dict[int, dict[int, float]]  #: replicas -> batch of each -> seconds of a step


def read_speedup(folder: Path, global_batch: int | None = None) -> Speedup:
    """S(k) of one model at a constant global batch, each gang on the fewest nodes.

    k replicas share the batch, so a step on k takes the time measured for a k-th of it, linear
    between measured sizes. Below the smallest measured size, a step gets no shorter.

    Args:
        folder: A folder with one or both files.
        global_batch: By default the largest batch that was measured on one GPU.

    Raises:
        DeadlineError: A file lacks a column or is malformed, or one GPU was not measured.
    """
    profile = read_profile(folder)
    if 1 not in profile:
        raise DeadlineError(f"{folder} has no step time on one GPU to compare with.")
    batch = global_batch or max(profile[1])
    alone = _step_seconds(profile[1], batch)
    gangs = {k: _step_seconds(sizes, batch / k) for k, sizes in sorted(profile.items()) if k > 1}
    return Speedup({k: alone / seconds for k, seconds in gangs.items()})


def read_profile(folder: Path) -> Profile:
    """Seconds of a step by replicas and batch of each, on the fewest nodes measured.

    Raises:
        DeadlineError: A file lacks a column or is malformed.
    """
    nodes: dict[int, int] = {}
    seen: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for hosts, replicas, size, seconds in _rows(folder):
        if hosts < nodes.get(replicas, hosts + 1):
            nodes[replicas] = hosts
            seen[replicas].clear()
        if hosts == nodes[replicas]:
            seen[replicas][size].append(seconds)
    return {
        replicas: {size: float(np.mean(times)) for size, times in sizes.items()}
        for replicas, sizes in seen.items()
    }


def _rows(folder: Path) -> Iterator[tuple[int, int, int, float]]:
    """Nodes, replicas, batch of each replica and seconds of a step."""
    for name in FILES:
        path = folder / name
        if path.is_file():
            try:
                yield from _rows_of(path)
            except (UnicodeDecodeError, csv.Error) as error:
                raise DeadlineError(f"{path} is not a CSV file in UTF-8: {error}.") from None


def _rows_of(path: Path) -> Iterator[tuple[int, int, int, float]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                if path.name == "placements.csv":
                    digits = [int(digit) for digit in row["placement"]]
                    sizes = len(digits), sum(digits), int(row["local_bsz"])
                else:
                    sizes = int(row["num_nodes"]), int(row["num_replicas"]), int(row["local_bsz"])
                seconds = float(row["step_time"])
                valid = min(sizes) >= 1 and 0 < seconds < math.inf
            except KeyError as error:
                raise DeadlineError(f"{path} has no column {error}.") from None
            except (TypeError, ValueError):
                valid = False
            if not valid:
                raise DeadlineError(f"{path}: line {line} cannot be read: {row}.")
            yield *sizes, seconds


def _step_seconds(sizes: dict[int, float], batch: float) -> float:
    known = sorted(sizes)
    return float(np.interp(batch, known, [sizes[size] for size in known]))
