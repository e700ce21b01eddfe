"""Which direction is better, if the study, the callback and the metric's name may disagree."""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

from optuna_deadline.errors import DeadlineError

Direction = Literal["minimize", "maximize"]

_logger = logging.getLogger("optuna_deadline")
_WORDS: dict[str, Direction] = {
    "min": "minimize",
    "minimize": "minimize",
    "max": "maximize",
    "maximize": "maximize",
}
#: Parts of names of metrics that are maximized, and parts that mean the opposite.
_SCORES = {"acc", "accuracy", "auc", "auroc", "f1", "r2", "score"}
_LOSSES = {"loss", "error", "err", "nll"}


def direction_of(trial: Any, segment: Any, mode: str | None) -> Direction:
    """Which direction is better: from the worker, else from the study, else from ``mode``.

    Raises:
        DeadlineError: All of them leave it open, or ``mode`` contradicts the study.
    """
    found = known_direction(trial, segment, mode)
    if found is None:
        raise DeadlineError("Name the direction: pass mode='min' or mode='max'.")
    return found


def known_direction(trial: Any, segment: Any, mode: str | None) -> Direction | None:
    """The direction, as above; None if all leave it open.

    Raises:
        DeadlineError: ``mode`` contradicts the study.
    """
    named = getattr(segment, "direction", None)
    if named is None:
        named = getattr(getattr(trial, "study", None), "direction", None)
    known = _WORDS.get(str(getattr(named, "name", named)).lower())
    asked = _WORDS.get(str(mode).lower())
    if known is not None and asked is not None and known != asked:
        raise DeadlineError(
            f"mode={mode!r} contradicts the study, which {known}s its value: create the "
            f"study with direction={asked!r}, or leave mode out."
        )
    return known or asked


def warn_of_minimized_score(monitor: str, direction: Direction | None) -> None:
    """Log a warning if a metric that sounds like a score is minimized."""
    parts = set(re.split(r"[^a-z0-9]+", monitor.lower()))
    if direction == "minimize" and parts & _SCORES and not parts & _LOSSES:
        _logger.warning(
            "The study minimizes %s, which sounds as if larger is better: in that case create it "
            "with direction='maximize' (--direction maximize).",
            monitor,
        )
