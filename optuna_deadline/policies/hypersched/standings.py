"""The standings of HyperSched's trials: survivors, waiting trials, and successors.

Successors take the pool once all survivors have ended and little time is left.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.api import WORST, Snapshot, TrialView
from optuna_deadline.policies.rungs import Rung, build_rungs, first_report
from optuna_deadline.policies.trial_index import TrialIndex


class TrialStanding(NamedTuple):
    """The standing of a trial; sorts by priority, the highest first."""

    fails: bool  #: below the cut of a rung
    above: int  #: less its highest rung
    worse: float  #: less what it recorded there
    number: int
    rung: Rung | None  #: the highest at which it fails, else the highest that it reached

    def reason(self, trial: TrialView) -> str:
        """Why it runs or waits."""
        if self.rung is None:
            return "starts: a free slot" if trial.state == "ready" else "resumes: not yet judged"
        if not self.fails:
            return f"resumes: above the cut of rung {self.rung.milestone}"
        if trial.running:
            mine, cut = abs(self.rung.recorded[self.number]), abs(self.rung.cutoff or 0.0)
            return f"below the cut of rung {self.rung.milestone}: {mine:.4g} against {cut:.4g}"
        return "resumes: the best waiting trial, on a slot that no other can use"


_FIRST_FAILED = (True,)


class TrialStandings:
    """The standings of all live trials; only those that may have changed are updated.

    Attributes:
        survivors: Running trials above every cut, highest priority first.
        beaten: Running trials below a cut, likewise.
        waiting: Trials that do not run: those above every cut or without a report, then the
            others.
    """

    def __init__(self, retroactive: bool) -> None:
        self.survivors: list[TrialStanding] = []
        self.beaten: list[TrialStanding] = []
        self.waiting: list[TrialStanding] = []
        self._retroactive = retroactive
        self._places: dict[int, tuple[list[TrialStanding], TrialStanding]] = {}
        self._cuts: dict[int, float | None] = {}  # by milestone, the cuts of the last update

    def update(self, view: TrialIndex) -> TrialStandings:
        """Update trials that changed, and trials that a moved cut affects."""
        moved = view.take_changed()
        for rung in view.rungs:
            before, now = self._cuts.get(rung.milestone), rung.cutoff
            if now != before:
                moved.update(rung.between(before, now))
                self._cuts[rung.milestone] = now
        cuts = _cuts(view.rungs)
        for number in moved:
            if number in self._places:
                group, standing = self._places.pop(number)
                del group[bisect_left(group, standing)]
            if number in view.alive:
                trial = view.alive[number]
                standing = _judge(trial, cuts, self._retroactive)
                group = self._group(trial, standing)
                insort(group, standing)
                self._places[number] = group, standing
        return self

    def _group(self, trial: TrialView, standing: TrialStanding) -> list[TrialStanding]:
        if not trial.slots:
            return self.waiting
        return self.beaten if standing.fails else self.survivors

    @property
    def others(self) -> list[TrialStanding]:
        """All but the survivors, highest priority first."""
        return sorted([*self.waiting, *self.beaten])

    @property
    def waiting_above_cuts(self) -> list[TrialStanding]:
        """Waiting trials above every cut, or without a report."""
        return self.waiting[: bisect_left(self.waiting, _FIRST_FAILED)]

    @property
    def contenders(self) -> list[TrialStanding]:
        """Trials above every cut, or without a report."""
        return self.survivors + self.waiting_above_cuts

    def successors(self, view: TrialIndex) -> list[TrialStanding]:
        """The trials that take the pool once no survivor is left: our reconstruction.

        Those that wait above every cut, or without a report. If there are none, live trials are
        compared among themselves, without ended ones; if none passes, the best alone.
        """
        if passing := self.waiting_above_cuts:
            return passing
        trials = view.alive.values()
        cuts = _cuts(build_rungs(trials, view.min_resource, view.reduction_factor))
        again = sorted([_judge(trial, cuts, self._retroactive) for trial in trials])
        return again[: bisect_left(again, _FIRST_FAILED)] or again[:1]


#: A rung's milestone, its scores, its cut, and itself; the highest first.
_Cuts = list[tuple[int, dict[int, float], float | None, Rung]]


def _cuts(rungs: Sequence[Rung]) -> _Cuts:
    return [(rung.milestone, rung.recorded, rung.cutoff, rung) for rung in reversed(rungs)]


def _judge(trial: TrialView, cuts: _Cuts, retroactive: bool) -> TrialStanding:
    number, reports = trial.number, trial.reports
    last = reports[-1].step if reports else 0
    above, worse, found, fails = 0, -WORST, None, False
    judged = True
    for milestone, recorded, cut, rung in cuts:
        if milestone > last:
            continue
        score = recorded[number]
        if found is None:
            above, worse, found = -milestone, -score, rung
            judged = retroactive or first_report(reports, milestone) is reports[-1]
        if judged and cut is not None and score < cut:
            found, fails = rung, True
            break
        if not retroactive:
            break
    return TrialStanding(fails, above, worse, number, found)


def select_successors(
    snapshot: Snapshot,
    successors: list[TrialView],
    shares: Sequence[int],
    ahead: Sequence[int],
    largest: int,
) -> tuple[list[TrialView], float]:
    """The successors; only the best one if no other can reach a separating rung in time.

    The best model was trained to its end, and a trial that comes near it gets all slots. Survivors
    share until the deadline instead: each of them may still be the best.

    Args:
        snapshot: The study.
        successors: The best first.
        shares: The share of each in the pool.
        ahead: Steps until each is compared again.
        largest: The largest useful gang.

    Returns:
        The trials that share the pool, and until when that holds.
    """
    most = max((trial.slots for trial in successors), default=0)
    first = [trial for trial in successors if trial.slots == most]
    leader = (first if len(first) == 1 else successors)[:1]  # a single trial stays the only one
    needed = 0.0
    for trial, share, steps in zip(successors, shares, ahead, strict=True):
        if trial in leader:
            if snapshot.speedup(largest) <= WORTHWHILE * snapshot.speedup(share):
                return successors, math.inf
        elif (left := trial.seconds_to(trial.step + steps)) is not None:
            lost = 0.0 if share == trial.slots else snapshot.overhead.total
            needed = max(needed, left / snapshot.speedup(share) + lost)
    if snapshot.time_left > needed:
        return successors, snapshot.deadline - needed
    return leader, math.inf
