"""Scores of any recorded metric on one scale, and tables of ``python -m benchmarks.record``.

One file holds one table: ``about`` (JSON: name, metric, direction, versions), ``hp``
(configurations x hyperparameters), ``hp_names``, the metric under its name and ``seconds``
(configurations x epochs). Both are NaN from where training diverged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation.workload import Workload

Array = NDArray[np.float64]
Archive = Mapping[str, NDArray[Any]]

#: Metrics to minimize; all others are maximized.
_ERRORS = ("loss", "wer", "error", "entropy", "perplexity")


def less_is_better(metric: str) -> bool:
    """Whether a metric of this name is minimized."""
    return any(word in metric.lower() for word in _ERRORS)


def to_workload(
    name: str,
    path: Path,
    values: Array,
    seconds: Array,
    hyperparameters: Sequence[Mapping[str, Any]],
    *,
    minimize: bool,
) -> Workload:
    """A workload whose regret is 0 for the best configuration and 1 for the median one.

    A configuration counts by the best value of its full training. Values are only shifted and
    scaled, so curves keep their shape. Values that are not finite have diverged.

    Args:
        name: The name of the workload.
        path: The file, for messages.
        values: By configuration, the metric after each step.
        seconds: By configuration, the seconds of a step, or those of each step.
        hyperparameters: By configuration.
        minimize: Whether the metric is minimized.

    Raises:
        DeadlineError: The shapes differ, or all configurations are equal.
    """
    if values.ndim != 2 or not values.size:
        raise DeadlineError(f"{path}: {name} needs a row of values for each configuration.")
    if len(seconds) != len(values) or len(hyperparameters) != len(values):
        raise DeadlineError(
            f"{path}: {name} has {len(values)} curves, {len(seconds)} paces and "
            f"{len(hyperparameters)} sets of hyper-parameters; there must be one of each."
        )
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise DeadlineError(f"{path}: {name} has steps that take no time.")
    scores = np.where(np.isfinite(values), -values if minimize else values, np.nan)
    peaks = np.max(np.where(np.isnan(scores), -math.inf, scores), axis=1)
    best = peaks.max()
    # If more than half diverge at once, the median of the others.
    middle = np.median(peaks)
    if not math.isfinite(middle):
        middle = np.median(peaks[np.isfinite(peaks)]) if math.isfinite(best) else best
    if not math.isfinite(best) or best <= middle:
        raise DeadlineError(
            f"{path}: the configurations of {name} all end alike, so there is nothing to choose."
        )
    scores = (scores - middle) / (best - middle)
    return Workload(
        name,
        tuple(tuple(row) for row in scores.tolist()),
        tuple(seconds.reshape(len(seconds), -1).mean(axis=1).tolist()),
        tuple(dict(given) for given in hyperparameters),
        report_seconds=tuple(map(tuple, seconds.tolist())) if seconds.ndim > 1 else (),
    )


def named(names: NDArray[Any], rows: NDArray[Any]) -> list[dict[str, float]]:
    """Hyperparameters by name, for each row."""
    return [dict(zip(map(str, names), map(float, row), strict=True)) for row in rows]


def open_archive(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a NumPy file.

    Raises:
        DeadlineError: It is not one, or it is cut short.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except Exception as error:  # damaged bytes fail in NumPy's, zip's, zlib's and Python's parsers
        raise DeadlineError(f"{path} cannot be read ({error}); fetch it again.") from None


def need(path: Path, archive: Archive, shapes: Mapping[str, int]) -> None:
    """Check that arrays exist and have the right number of dimensions.

    Raises:
        DeadlineError: It names what is missing.
    """
    missing = [key for key in shapes if key not in archive]
    if missing:
        raise DeadlineError(
            f"{path} has no {', '.join(missing)}; a table of this kind has {', '.join(shapes)}."
        )
    for key, dimensions in shapes.items():
        if archive[key].ndim != dimensions:
            raise DeadlineError(
                f"{path}: {key} has {archive[key].ndim} dimensions and needs {dimensions}."
            )


def need_alike(path: Path, archive: Archive, first: str, *others: str, axes: int) -> None:
    """Check that arrays have the same first dimensions.

    Raises:
        DeadlineError: It names the arrays that differ.
    """
    shape = archive[first].shape[:axes]
    for other in others:
        if archive[other].shape[:axes] != shape:
            raise DeadlineError(
                f"{path}: {first} is {archive[first].shape} and {other} is "
                f"{archive[other].shape}; they do not belong together."
            )


KIND = "recorded"


def recognises(archive: Archive) -> bool:
    """Whether the file is of this kind."""
    return "about" in archive and "seconds" in archive


def read(path: Path, archive: Archive) -> list[Workload]:
    """Read the file's one workload.

    Raises:
        DeadlineError: Something is missing or malformed.
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
    # A run that diverged in the first epoch has no time; the median of the others is used.
    middle = np.median(seconds[known]) if known.any() else np.nan
    for row, ended in zip(seconds, ~known, strict=True):
        row[ended] = middle if ended.all() else row[~ended].mean()
    workload = to_workload(
        f"{KIND}/{name}",
        path,
        archive[metric].astype(float),
        seconds,
        named(archive["hp_names"], archive["hp"]),
        minimize=direction == "minimize",
    )
    return [workload]
