"""Reports with their times, which Optuna's studies and Ray do not keep."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

_NAME = "reports.jsonl"


@dataclass(frozen=True)
class Report:
    """One trial's value after an epoch.

    Attributes:
        at: Seconds since the Unix epoch.
        trial: The trial's name.
        step: The epoch.
        width: The width of the network.
    """

    at: float
    trial: str
    step: int
    value: float
    width: int | None


def append(folder: Path, report: Report) -> None:
    """Append a report; several processes may write."""
    line = json.dumps(asdict(report)).encode() + b"\n"
    log = os.open(folder / _NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line)
    finally:
        os.close(log)


def read(folder: Path) -> list[Report]:
    """All reports, in the order of their times."""
    path = folder / _NAME
    lines = path.read_text().splitlines() if path.is_file() else ()
    return sorted((Report(**json.loads(line)) for line in lines), key=lambda one: one.at)


def improvements(
    reports: Iterable[Report], begin: float, maximize: bool
) -> list[tuple[float, float]]:
    """The best value so far, at each instant at which it became better.

    Args:
        reports: In the order of their times.
        begin: The instant from which seconds count.
        maximize: Whether larger values are better.
    """
    found: list[tuple[float, float]] = []
    for report in reports:
        before = found[-1][1] if found else None
        if before is None or (report.value > before if maximize else report.value < before):
            found.append((report.at - begin, report.value))
    return found
