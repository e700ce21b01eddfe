"""Reports with their times, for contenders without an Optuna study."""

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
        at: Seconds since the Unix epoch.
        trial: The trial's name.
        step: The trained epochs.
        width: The width of the network.
    """

    at: float
    trial: str
    step: int
    width: int
    value: float


def append(folder: Path, report: Report) -> None:
    """Append a report; several processes may write."""
    line = json.dumps(asdict(report)).encode() + b"\n"
    log = os.open(folder / _NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line)
    finally:
        os.close(log)


def read(folder: Path, until: float) -> list[tuple[int, dict[int, float]]]:
    """By trial, the network's width and the reports by step until a given time."""
    path = folder / _NAME
    found: dict[str, tuple[int, dict[int, float]]] = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        report = Report(**json.loads(line))
        if report.at <= until:
            _, values = found.setdefault(report.trial, (report.width, {}))
            values[report.step] = report.value
    return list(found.values())
