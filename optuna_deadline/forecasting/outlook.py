"""What a trial will have reached after more steps: the one forecaster behind every figure.

It is no posterior. Several decays (:mod:`optuna_deadline.forecasting.decay`) are fitted to the
trial's own reports, with different memories and with the newest reports left out; the middle is
their median, and the band reaches from the lowest to the highest of them and by the spread of the
reports around the fits beyond. Our own rule, plain on purpose: a better forecaster needs to
replace :func:`outlook` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from optuna_deadline.forecasting.decay import Decay, fit_decay

_MEMORIES = (3.0, 8.0, 20.0)
_LEFT_OUT = (0.0, 0.15, 0.3)  # shares of the reports, from the end
_MOST = 60  # reports that are fitted; of more, every n-th


@dataclass(frozen=True)
class Outlook:
    """The best score that a trial is expected to have had at each of some steps."""

    mid: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def outlook(steps: Sequence[float], scores: Sequence[float], ahead: Sequence[float]) -> Outlook:
    """The best score that a trial will have had once it comes to each step of ``ahead``.

    Args:
        steps: Of the reports, rising.
        scores: Larger is better; what is not finite is left out.
        ahead: Steps at or after the last one.

    Returns:
        Nowhere below the best score so far. With fewer than three reports, or reports that do not
        get better, that score with the range of all reports above it.

    Raises:
        ValueError: No score is finite.
    """
    points = [(k, s) for k, s in zip(steps, scores, strict=True) if math.isfinite(s)]
    if not points:
        raise ValueError("Nothing can be expected of a trial without a finite report.")
    best = max(score for _, score in points)
    fits = _fits(points[:: -(-len(points) // _MOST)])
    if not fits:
        reach = best - min(score for _, score in points)
        flat = (best,) * len(ahead)
        return Outlook(flat, flat, (best + reach,) * len(ahead))
    spread = median(_spread(fit, points) for fit in fits)
    mid, low, high = [], [], []
    for step in ahead:
        values = sorted(-fit(step) for fit in fits)
        mid.append(max(best, median(values)))
        low.append(max(best, values[0] - spread))
        high.append(max(best, values[-1] + spread))
    return Outlook(tuple(mid), tuple(low), tuple(high))


def _fits(points: Sequence[tuple[float, float]]) -> list[Decay]:
    fits = []
    for share in _LEFT_OUT:
        kept = points[: len(points) - int(share * len(points))]
        for memory in _MEMORIES:
            fit = fit_decay([k for k, _ in kept], [-score for _, score in kept], memory)
            if fit is not None:
                fits.append(fit)
    return fits


def _spread(fit: Decay, points: Sequence[tuple[float, float]]) -> float:
    """The mean distance of the later half of the reports from a fit."""
    later = points[len(points) // 2 :]
    return sum(abs(-fit(k) - score) for k, score in later) / len(later)
