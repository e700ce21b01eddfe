"""AlgoPerf's training-algorithm logs: real runs in real seconds.

Two parquet files in one folder: runs (one row each, with hyperparameters, workload and target
metric) and curves (one row per evaluation). Optimizers count steps in different units, so a report
step here is an evaluation period of training time, the same for all runs of a workload. It has the
value of the last evaluation up to it. A slot stands for one whole machine of the recording, 8 GPUs
in AlgoPerf's own.

Many runs end early, mostly because they met their target. Two rules apply to all runs: the time
axis ends at the smallest budget of any run of the workload, and a run that ended before holds its
last value. Every usable run is a configuration; a repeat with another seed is another one.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation.tables.curves import Array, less_is_better, to_workload
from optuna_deadline.simulation.workload import Workload

KIND = "algoperf"
LEAST_POINTS = 5  #: a run with fewer evaluations crashed early, as the recording says

_TIME = "accumulated_submission_time"
_RUNS = (
    "run_id", "workload", "submission", "hparams", "target_metric", "max_runtime_s",
    "eval_period_s",
)  # fmt: skip


def read_folder(paths: Sequence[Path]) -> list[Workload]:
    """The workloads of one folder's parquet files; empty for files of another kind.

    Raises:
        DeadlineError: One of the two files is missing, is cut short or lacks columns, or pyarrow
            is not installed.
    """
    columns = {path: _columns(path) for path in paths}
    runs = [path for path in paths if {"run_id", "workload"} <= columns[path]]
    curves = [path for path in paths if {"run_id", _TIME} <= columns[path]]
    if not runs and not curves:
        return []
    if len(runs) != 1 or len(curves) != 1:
        raise DeadlineError(
            f"{paths[0].parent} needs one parquet file of runs (run_id, workload, ...) and one of "
            f"curves (run_id, {_TIME}, ...), but has {len(runs)} and {len(curves)}."
        )
    missing = [name for name in _RUNS if name not in columns[runs[0]]]
    if missing:
        raise DeadlineError(f"{runs[0]} has no column {', '.join(missing)}.")
    return list(_workloads(runs[0], curves[0], columns[curves[0]]))


def _workloads(runs: Path, curves: Path, columns: set[str]) -> Iterator[Workload]:
    by_workload: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in _parquet().read_table(runs, columns=list(_RUNS)).to_pylist():
        by_workload[str(run["workload"])].append(run)
    metrics = {str(run["target_metric"]) for mine in by_workload.values() for run in mine}
    absent = [metric for metric in sorted(metrics) if f"validation_{metric}" not in columns]
    if absent:
        raise DeadlineError(f"{curves} has no column validation_{absent[0]}.")
    evaluations = _evaluations(curves, sorted(metrics))
    for name, mine in sorted(by_workload.items()):
        usable = [run for run in mine if _points(evaluations, run) >= LEAST_POINTS]
        if not usable:
            raise DeadlineError(f"{curves} has no run of {name} with {LEAST_POINTS} evaluations.")
        metric = str(usable[0]["target_metric"])
        period = float(usable[0]["eval_period_s"])
        horizon = float(min(run["max_runtime_s"] for run in usable))
        times = period * np.arange(1.0, max(1, math.floor(horizon / period)) + 1)
        yield to_workload(
            f"{KIND}/{name}",
            curves,
            np.stack([_resample(evaluations[metric][run["run_id"]], times) for run in usable]),
            np.full(len(usable), period),
            [_hyperparameters(run, runs) for run in usable],
            minimize=less_is_better(metric),
        )


def _evaluations(curves: Path, metrics: Sequence[str]) -> dict[str, dict[int, Array]]:
    """By metric and run: times and values of its evaluations, in the order of time."""
    names = ["run_id", _TIME, *(f"validation_{metric}" for metric in metrics)]
    table = _parquet().read_table(curves, columns=names)
    runs, times = table["run_id"].to_numpy(), table[_TIME].to_numpy()
    order = np.lexsort((times, runs))
    numbers, starts = np.unique(runs[order], return_index=True)
    found: dict[str, dict[int, Array]] = {}
    for metric in metrics:
        pairs = np.stack([times, table[f"validation_{metric}"].to_numpy()], axis=1)[order]
        split = np.split(pairs.astype(float), starts[1:])
        found[metric] = {int(n): rows for n, rows in zip(numbers, split, strict=True)}
    return found


def _points(evaluations: Mapping[str, Mapping[int, Array]], run: Mapping[str, Any]) -> int:
    return len(evaluations[str(run["target_metric"])].get(run["run_id"], ()))


def _resample(evaluations: Array, times: Array) -> Array:
    """The last value up to each instant; before the first evaluation, its value."""
    last = np.searchsorted(evaluations[:, 0], times, side="right") - 1
    held: Array = evaluations[np.maximum(last, 0), 1]
    return held


def _hyperparameters(run: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        given = json.loads(run["hparams"]) if run["hparams"] else {}
    except ValueError:
        raise DeadlineError(f"{path}: hparams of run {run['run_id']} is not JSON.") from None
    return {"submission": run["submission"], **given}


def _columns(path: Path) -> set[str]:
    try:
        return set(_parquet().read_schema(path).names)
    except OSError as error:  # pyarrow's own errors are OSError and ValueError
        raise DeadlineError(f"{path} cannot be read ({error}); fetch it again.") from None
    except ValueError as error:
        raise DeadlineError(f"{path} is not a parquet file ({error}); fetch it again.") from None


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DeadlineError(
            "Curves in parquet need pyarrow: pip install pyarrow, or name another folder."
        ) from None
    return parquet
