"""One run of each of the Trainer's loggers in a trial, however many segments the trial has."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any

from optuna_deadline.segments import RUNS

_MLFLOW = "MLFLOW_RUN_ID"


def continue_runs(trial: Any, output: str) -> None:
    """Let loggers write to the trial's runs; call before a ``Trainer`` makes them.

    What the user's own environment names stays.

    Args:
        trial: The objective's trial.
        output: The trainer's folder.
    """
    held = _runs(trial)
    if not held:
        run = uuid.uuid4().hex[:8]
        folder = Path(output, "runs", f"trial-{trial.number}-{run}")
        held = {"TENSORBOARD_LOGGING_DIR": str(folder), "WANDB_RUN_ID": run}
        trial.set_user_attr(RUNS, held)
    for name, value in {**held, "WANDB_RESUME": "allow"}.items():
        os.environ.setdefault(name, value)


def note_runs(trial: Any) -> None:
    """Store the run that MLflow has begun, which it names itself; call when training begins."""
    mlflow, held = sys.modules.get("mlflow"), _runs(trial)
    run = None if mlflow is None else mlflow.active_run()
    if held and run is not None and _MLFLOW not in held:
        trial.set_user_attr(RUNS, {**held, _MLFLOW: run.info.run_id})


def _runs(trial: Any) -> dict[str, str]:
    """By the environment variables that loggers read."""
    return dict(getattr(trial, "user_attrs", {}).get(RUNS, {}))
