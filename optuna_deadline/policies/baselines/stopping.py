"""Two simple rules: the median of the others, and the best after one epoch."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from operator import attrgetter
from statistics import median

from optuna_deadline.policies.api import WORST, Order, Pause, Plan, Report, Snapshot, TrialView
from optuna_deadline.policies.base import (
    Resources,
    SlotCandidate,
    alive,
    one_slot_each,
    retire_beaten,
    running_first,
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


@dataclass(frozen=True)
class OneEpoch(Resources):
    """Train every trial for one epoch, then the best to their ends (Egele et al., 2023).

    Our reconstruction: new trials start as long as the best can still train to their ends
    afterwards.

    Args:
        top: How many train to their ends first; None for one per slot. If slots are free, the next
            best follow.
    """

    top: int | None = None

    def plan(self, snapshot: Snapshot) -> Plan:
        """First the epoch of started trials, then new trials or the best."""
        rungs = self.index_of(snapshot.trials).rungs
        recorded = rungs[0].recorded if rungs else {}
        trials = alive(snapshot)
        begun = running_first([trial for trial in trials if trial.number not in recorded])
        ranked = sorted(
            (trial for trial in trials if trial.number in recorded),
            key=lambda trial: (-recorded[trial.number], trial.number),
        )
        claims = [SlotCandidate(trial, "its first epoch") for trial in begun]
        until = self._explores_until(snapshot)
        if snapshot.now < until:
            orders: dict[int, Order] = {
                trial.number: Pause("waits until every trial has had an epoch") for trial in ranked
            }
            newcomers = self.trials_left_to_open(snapshot)
            return one_slot_each(snapshot, claims, orders, newcomers=newcomers, holds_until=until)
        best = [SlotCandidate(trial, "among the best after one epoch") for trial in ranked]
        end = snapshot.deadline
        return one_slot_each(snapshot, claims, newcomers=0, leftovers=best, holds_until=end)

    def _explores_until(self, snapshot: Snapshot) -> float:
        """When the last trial may start, by present measurements."""
        if self.trials_left_to_open(snapshot) == 0:
            return -math.inf
        paces = [t.step_seconds for t in snapshot.trials if t.step_seconds is not None]
        last = self.last_step(snapshot.trials)
        if not paces:
            return snapshot.deadline
        if last is None:
            return (snapshot.started + snapshot.deadline) / 2
        waves = math.ceil((self.top or snapshot.capacity) / max(1, snapshot.capacity))
        whole = snapshot.overhead.startup + (last - self.min_resource) * median(paces)
        return snapshot.deadline - waves * whole


def _running_means(reports: Sequence[Report]) -> list[float]:
    totals = accumulate([report.score for report in reports])
    return [total / count for count, total in enumerate(totals, 1)]
