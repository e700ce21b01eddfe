"""Reports with their times, which Optuna's studies and Ray do not keep."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from optuna_deadline.allocation.records import ReportRow
from optuna_deadline.history.records import best_so_far

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
    reports: Iterable[Report], begin: float, direction: str
) -> list[tuple[float, float]]:
    """The best value so far, at each instant at which it became better.

    Args:
        reports: In the order of their times.
        begin: The instant from which seconds count.
        direction: "minimize" or "maximize".
    """
    rows = [
        ReportRow(place, 0, one.step, one.value, 1, 0.0, one.at)
        for place, one in enumerate(reports)
    ]
    return [(one.at - begin, one.value) for one in best_so_far(rows, direction)]
