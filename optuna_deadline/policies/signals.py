"""Signals of convergence: how promising a trial's curve looks, by five simple rules.

Hermes favours trials that converge quickly early in their training. Its formula is not in our
sources: all five are our reconstruction, and which is the default was decided by measurement
(``docs/policies/hermes.md``). Scores are larger the better, so a falling loss is a rising score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from optuna_deadline.policies.snapshot import WORST, Report, TrialView

#: Reports, the length of the window, the score before any training.
Signal = Callable[[Sequence[Report], int, float], float]


def slope(reports: Sequence[Report], window: int, origin: float) -> float:
    """The gain per step over the last ``window`` reports."""
    last, before = reports[-1], reports[max(0, len(reports) - 1 - window)]
    return (last.score - before.score) / max(1, last.step - before.step)


def relative_slope(reports: Sequence[Report], window: int, origin: float) -> float:
    """The same by all that was gained so far."""
    best = max(report.score for report in reports)
    lost = best - min(origin, reports[0].score)
    return slope(reports, window, origin) / lost if lost > 0 else 0.0


def mean_speed(reports: Sequence[Report], window: int, origin: float) -> float:
    """The gain per step since the beginning."""
    return (reports[-1].score - origin) / _steps(reports, reports[-1])


def early_speed(reports: Sequence[Report], window: int, origin: float) -> float:
    """The gain per step over the first ``window`` reports, which never changes afterwards."""
    last = reports[min(window, len(reports)) - 1]
    return (last.score - origin) / _steps(reports, last)


def gain(reports: Sequence[Report], window: int, origin: float) -> float:
    """All that was gained so far."""
    return reports[-1].score - origin


def _steps(reports: Sequence[Report], last: Report) -> int:
    return last.step - reports[0].step + 1


SIGNALS: dict[str, Signal] = {
    "slope": slope,
    "relative_slope": relative_slope,
    "mean_speed": mean_speed,
    "early_speed": early_speed,
    "gain": gain,
}


def read_signals(
    trials: Sequence[TrialView], signal: str, window: int, own_origin: bool = False
) -> dict[int, float]:
    """The signal of each trial that has reported; one that has diverged has the worst of all.

    Where a curve begins is not reported: the first report comes after some training, which took
    the quick ones far already. The trials of a study share a metric, so the score before training
    is taken to be the lowest first report of them all.

    Args:
        trials: All trials, also those that have ended.
        signal: One of :data:`SIGNALS`.
        window: In reports.
        own_origin: Take each trial's own first report for its beginning instead.
    """
    judged = [trial for trial in trials if trial.reports and trial.state != "failed"]
    firsts = [trial.reports[0].score for trial in judged]
    lowest = min((score for score in firsts if math.isfinite(score)), default=0.0)
    found = {}
    for trial in judged:
        origin = trial.reports[0].score if own_origin else lowest
        value = WORST
        if math.isfinite(trial.last_score):
            value = SIGNALS[signal](trial.reports, window, origin)
        found[trial.number] = value if math.isfinite(value) else WORST
    return found


@dataclass(frozen=True)
class Standing:
    """Signals made comparable, whatever their scale: 0 is the median, 1 the best.

    Attributes:
        places: By trial, from -1 to 1.
        outliers: By trial, how many robust standard deviations it is above the median.
    """

    places: dict[int, float]
    outliers: dict[int, float]

    @classmethod
    def of(cls, signals: dict[int, float]) -> Standing:
        """Of the signals of all trials, also of those that have ended."""
        finite = [value for value in signals.values() if value > WORST]
        if not finite:
            return cls(dict.fromkeys(signals, -1.0), dict.fromkeys(signals, 0.0))
        middle, best = median(finite), max(finite)
        # The median deviation of normal values is 0.6745 standard deviations.
        deviation = median(abs(value - middle) for value in finite) / 0.6745
        places, outliers = {}, {}
        for number, value in signals.items():
            above = value - middle
            places[number] = max(-1.0, above / (best - middle)) if best > middle else 0.0
            if value == WORST:
                places[number] = -1.0
            outliers[number] = above / deviation if deviation > 0 else 0.0
        return cls(places, outliers)
