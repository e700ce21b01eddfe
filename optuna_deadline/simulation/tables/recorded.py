"""Tables that ``python -m benchmarks.record`` writes, the project's own among them.

One file holds one table: ``about`` (JSON: name, metric, direction, versions), ``hp``
(configurations x hyper-parameters), ``hp_names``, the metric under its name and ``seconds``
(configurations x epochs). Both are NaN from where training diverged.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation.tables.curves import (
    Archive,
    named,
    need,
    need_alike,
    to_workload,
)
from optuna_deadline.simulation.workload import Workload

KIND = "recorded"


def recognises(archive: Archive) -> bool:
    """Whether the file is of this kind."""
    return "about" in archive and "seconds" in archive


def read(path: Path, archive: Archive) -> list[Workload]:
    """The file's one workload.

    Raises:
        DeadlineError: Something is missing or does not fit.
    """
    try:
        about = json.loads(str(archive["about"]))
        name, metric, direction = (str(about[key]) for key in ("name", "metric", "direction"))
    except (ValueError, KeyError, TypeError):
        raise DeadlineError(
            f"{path}: about is not JSON with name, metric and direction; record it again."
        ) from None
    need(path, archive, {"hp": 2, "hp_names": 1, "seconds": 2, metric: 2})
    need_alike(path, archive, metric, "seconds", axes=2)
    seconds = archive["seconds"].astype(float)
    known = np.isfinite(seconds)
    # Who diverged in the first epoch left no time; the middle of the others stands for it.
    middle = np.median(seconds[known]) if known.any() else np.nan
    pace = np.array(
        [np.mean(row[row == row]) if (row == row).any() else middle for row in seconds]
    )
    workload = to_workload(
        f"{KIND}/{name}",
        path,
        archive[metric].astype(float),
        pace,
        named(archive["hp_names"], archive["hp"]),
        minimize=direction == "minimize",
    )
    return [workload]
