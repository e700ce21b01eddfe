"""One run of each logger in a trial, however many segments the trial has."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)

from optuna_deadline.segments import RUNS

_Rows = list[dict[str, str]]


class LoggerRuns:
    """The runs that the loggers of a trial's fit write to.

    Checkpoints have them, and the trial's attributes: after a crash before the first checkpoint.
    What a run has logged after a checkpoint is dropped, since it is trained again. MLflow and W&B
    cannot drop anything; they log it a second time.

    Args:
        trial: The objective's trial.
        fit: The name of the fit; empty for the only one.
    """

    def __init__(self, trial: Any, fit: str) -> None:
        self._trial = trial
        self._key = f"{RUNS}:{fit}" if fit else RUNS
        self._rows: list[tuple[CSVLogger, _Rows]] | None = None

    def resume(self, loggers: Sequence[Logger], saved: Sequence[Any], step: int) -> None:
        """Let them continue the runs of the segment before; call before they begin one.

        Args:
            loggers: The trainer's.
            saved: Their :meth:`ids` in the checkpoint, if there is one.
            step: The global step from which training resumes.
        """
        ids = saved or getattr(self._trial, "user_attrs", {}).get(self._key)
        if not ids:
            return
        self._rows = []
        warnings.filterwarnings("ignore", "Experiment logs directory")  # its rows are put back
        for one, run in zip(loggers, ids, strict=False):
            held = vars(one)
            if isinstance(one, CSVLogger):
                held["_version"] = run if held["_version"] is None else held["_version"]
                self._rows.append((one, _rows(Path(one.log_dir) / "metrics.csv", step)))
            elif isinstance(one, TensorBoardLogger):
                held["_version"] = run if held["_version"] is None else held["_version"]
                held["_kwargs"].setdefault("purge_step", step)
            elif isinstance(one, MLFlowLogger):
                held["_run_id"] = held["_run_id"] or run
            elif isinstance(one, WandbLogger):
                held["_id"] = held["_id"] or run
                held["_wandb_init"]["id"] = held["_id"]

    def put_back(self) -> None:
        """Restore what they had written; the first rank calls it when they have begun."""
        for logger, rows in self._rows or ():
            _write(logger, rows)

    @staticmethod
    def ids(loggers: Sequence[Logger]) -> list[int | str | None]:
        """What names the run of each: a version, or an id of a server."""
        return [one.run_id if isinstance(one, MLFlowLogger) else one.version for one in loggers]

    def note(self, loggers: Sequence[Logger]) -> None:
        """Store their :meth:`ids`."""
        if loggers and self._rows is None and hasattr(self._trial, "set_user_attr"):
            self._rows = []
            self._trial.set_user_attr(self._key, self.ids(loggers))


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
    if rows:
        writer.metrics_keys = list(rows[0])
        with open(writer.metrics_file_path, "w", newline="") as lines:
            table = csv.DictWriter(lines, fieldnames=writer.metrics_keys)
            table.writeheader()
            table.writerows(rows)
