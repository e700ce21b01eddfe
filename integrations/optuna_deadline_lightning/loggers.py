"""One run of each logger in a trial, however many segments the trial has."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)

_Rows = list[dict[str, str]]


def run_ids(loggers: Iterable[Logger]) -> list[int | str | None]:
    """What names the run of each logger: a version, or an id of a server."""
    return [one.run_id if isinstance(one, MLFlowLogger) else one.version for one in loggers]


def continue_runs(
    loggers: Sequence[Logger], ids: Sequence[int | str | None], step: int
) -> Callable[[], None]:
    """Let loggers continue the runs of the segment before; call before they begin one.

    What a run has logged after the checkpoint is dropped, since it is trained again. MLflow and
    W&B cannot drop anything; they log it a second time.

    Args:
        loggers: The trainer's.
        ids: Their :func:`run_ids` there.
        step: The global step of the checkpoint.

    Returns:
        A function to call when they have begun.
    """
    kept: list[tuple[CSVLogger, _Rows]] = []
    warnings.filterwarnings("ignore", "Experiment logs directory")  # its rows are put back
    for one, run in zip(loggers, ids, strict=False):
        held = vars(one)
        if isinstance(one, CSVLogger):
            held["_version"] = run if held["_version"] is None else held["_version"]
            kept.append((one, _rows(Path(one.log_dir) / "metrics.csv", step)))
        elif isinstance(one, TensorBoardLogger):
            held["_version"] = run if held["_version"] is None else held["_version"]
            held["_kwargs"].setdefault("purge_step", step)
        elif isinstance(one, MLFlowLogger):
            held["_run_id"] = held["_run_id"] or run
        elif isinstance(one, WandbLogger):
            held["_id"] = held["_id"] or run
            held["_wandb_init"]["id"] = held["_id"]

    def begun() -> None:
        for logger, rows in kept:
            _write(logger, rows)

    return begun


def _rows(file: Path, before: int) -> _Rows:
    """The rows of a file of metrics before a step."""
    if not file.is_file():
        return []
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [row for row in rows if int(row["step"]) < before]


def _write(logger: CSVLogger, rows: _Rows) -> None:
    """Put rows back: Lightning deletes the file of a run that begins."""
    writer: Any = logger.experiment
    if rows and hasattr(writer, "metrics_file_path"):  # not on a slot that logs nothing
        writer.metrics_keys = list(rows[0])
        with open(writer.metrics_file_path, "w", newline="") as lines:
            table = csv.DictWriter(lines, fieldnames=writer.metrics_keys)
            table.writeheader()
            table.writerows(rows)
