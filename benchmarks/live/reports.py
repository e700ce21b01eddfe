"""What was reported by when, of contenders that keep no Optuna study."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_NAME = "reports.jsonl"


@dataclass(frozen=True)
class Report:
    """One trial's value after an epoch.

    Attributes:
        at: Seconds since the epoch of Unix.
        trial: Its name.
        step: Epochs trained.
        width: Of the network.
    """

    at: float
    trial: str
    step: int
    width: int
    value: float


def append(folder: Path, report: Report) -> None:
    """Write one down; several processes may."""
    line = json.dumps(asdict(report)).encode() + b"\n"
    log = os.open(folder / _NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line)
    finally:
        os.close(log)


def read(folder: Path, until: float) -> list[tuple[int, dict[int, float]]]:
    """By trial, its network's width, and what it had reported until an instant by step."""
    path = folder / _NAME
    found: dict[str, tuple[int, dict[int, float]]] = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        report = Report(**json.loads(line))
        if report.at <= until:
            _, values = found.setdefault(report.trial, (report.width, {}))
            values[report.step] = report.value
    return list(found.values())
