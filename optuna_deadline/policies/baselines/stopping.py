"""The median rule: a trial ends below the median of the others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from operator import attrgetter

from optuna_deadline.policies.api import WORST, Plan, Report, Snapshot, TrialView
from optuna_deadline.policies.base import (
    Resources,
    retire_beaten,
)

#: The fewest other trials for a median (our choice).
_FEWEST = 3

_STEP = attrgetter("step")


@dataclass(frozen=True)
class Median(Resources):
    """The median stopping rule of Google Vizier (Golovin et al., KDD 2017).

    A trial at step ``s`` ends if its best score is below the median of the other trials' averages
    until ``s``; before ``min_resource`` steps no trial is compared.
    """

    def plan(self, snapshot: Snapshot) -> Plan:
        """Retire the trials below the median; all others continue."""
        averages = _Averages([trial for trial in snapshot.trials if trial.state != "failed"])

        def beaten(trial: TrialView) -> str | None:
            if not self._below(trial, averages):
                return None
            return f"below the median of the others at {trial.step}"

        words = "not below the median of the others"
        return retire_beaten(snapshot, beaten, words, self.trials_left_to_open(snapshot))

    def _below(self, trial: TrialView, averages: _Averages) -> bool:
        if not trial.reports or trial.step < self.min_resource:
            return False
        middle = averages.median_of_others(trial)
        return middle is not None and trial.best_score < middle


class _Averages:
    """The trials' averages until a step, computed once for all trials at that step."""

    def __init__(self, trials: Sequence[TrialView]) -> None:
        judged = [trial for trial in trials if trial.reports]
        self._furthest = sorted(judged, key=lambda trial: trial.step, reverse=True)
        self._running = {trial.number: _running_means(trial.reports) for trial in judged}
        self._ordered: dict[int, list[float]] = {}

    def median_of_others(self, trial: TrialView) -> float | None:
        """The median at a trial's step of all others that came as far; None if too few did."""
        step = trial.step
        if step not in self._ordered:
            came = takewhile(lambda other: other.step >= step, self._furthest)
            self._ordered[step] = sorted([self._until(other, step) for other in came])
        ordered, last = self._ordered[step], len(self._ordered[step]) - 1
        if last < _FEWEST:
            return None
        own = bisect_left(ordered, self._running[trial.number][-1])
        others = [place + (place >= own) for place in ((last - 1) // 2, last // 2)]
        return (ordered[others[0]] + ordered[others[1]]) / 2

    def _until(self, trial: TrialView, step: int) -> float:
        until = bisect_right(trial.reports, step, key=_STEP)
        return self._running[trial.number][until - 1] if until else WORST


def _running_means(reports: Sequence[Report]) -> list[float]:
    totals = accumulate([report.score for report in reports])
    return [total / count for count, total in enumerate(totals, 1)]
