"""TaskSet's optimizer configurations: recorded losses of many runs, without their seconds.

One file holds one task: ``hp`` (configurations x hyper-parameters), ``hp_names``, and
``valid_loss`` (configurations x evaluations), of which the first is made before any training and
is left out. What is not finite has diverged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from optuna_deadline.simulation.tables.curves import (
    Archive,
    named,
    need,
    need_alike,
    to_workload,
)
from optuna_deadline.simulation.workload import Workload

KIND = "taskset"

#: Seconds are not recorded. The configurations of one task differ by their optimizer's settings
#: alone, so all of them are taken to be equally fast.
STEP_SECONDS = 10.0


def recognises(archive: Archive) -> bool:
    """Whether the file is of this kind."""
    return "valid_loss" in archive


def read(path: Path, archive: Archive) -> list[Workload]:
    """The file's one workload.

    Raises:
        DeadlineError: Something is missing or does not fit.
    """
    need(path, archive, {"hp": 2, "hp_names": 1, "valid_loss": 2})
    need_alike(path, archive, "hp", "valid_loss", axes=1)
    losses = archive["valid_loss"].astype(float)[:, 1:]
    workload = to_workload(
        f"{KIND}/{path.stem}",
        path,
        losses,
        np.full(len(losses), STEP_SECONDS),
        named(archive["hp_names"], archive["hp"]),
        minimize=True,
    )
    return [workload]
