"""LCBench by YAHPO-Gym's surrogate: predicted accuracies and seconds on many data sets.

One file holds many data sets: ``val_accuracy`` and cumulative ``time_s`` (data sets x
configurations x epochs), ``hp`` (configurations x hyper-parameters, the same for all),
``hp_names`` and ``openml_task_id``. The first epoch is the untrained network and is left out.
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

KIND = "lcbench"
_LEAST = 0.1  # of a configuration's mean seconds of an epoch


def recognises(archive: Archive) -> bool:
    """Whether the file is of this kind."""
    return "time_s" in archive and "val_accuracy" in archive


def read(path: Path, archive: Archive) -> list[Workload]:
    """A workload for each data set.

    Raises:
        DeadlineError: Something is missing or malformed.
    """
    shapes = {"openml_task_id": 1, "hp": 2, "hp_names": 1, "time_s": 3, "val_accuracy": 3}
    need(path, archive, shapes)
    need_alike(path, archive, "val_accuracy", "time_s", axes=3)
    need_alike(path, archive, "val_accuracy", "openml_task_id", axes=1)
    hyperparameters = named(archive["hp_names"], archive["hp"])
    workloads = []
    for task, accuracy, seconds in zip(
        archive["openml_task_id"], archive["val_accuracy"], archive["time_s"], strict=True
    ):
        # The surrogate's clock stands still or goes back in some places.
        paces = np.diff(np.maximum.accumulate(seconds.astype(float), axis=1), axis=1)
        mean = paces.mean(axis=1, keepdims=True)
        paces = np.maximum(paces, _LEAST * mean)
        paces *= mean / paces.mean(axis=1, keepdims=True)
        workloads.append(
            to_workload(
                f"{KIND}/{task}",
                path,
                accuracy.astype(float)[:, 1:],
                paces,
                hyperparameters,
                minimize=False,
            )
        )
    return workloads
