"""Asynchronous successive halving (Li et al., MLSys 2020), by stopping and by promotion.

*Promotion* is the paper's algorithm: a trial pauses at each rung and goes on once it is among the
best ``1 / reduction_factor`` there. *Stopping* is the variant of Ray Tune and Optuna: a trial that
comes to a rung below the cut is given up for good, so who comes early passes lightly. Both use one
slot for each trial, and plan for no deadline.

Our reconstruction: a plan sees all reports and not the moment of each, so a trial is judged from
its report at a rung until its next one; in the paper it is judged at that report. A trial that has
trained beyond a rung was promoted there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from optuna_deadline.policies.api import Order, Pause, Plan
from optuna_deadline.policies.base import Resources
from optuna_deadline.policies.rungs import Rung, first_report
from optuna_deadline.policies.single import Claim, one_slot_each, stop_the_beaten
from optuna_deadline.policies.snapshot import Snapshot, TrialView
from optuna_deadline.policies.trial_index import Overview


@dataclass(frozen=True)
class Asha(Resources):
    """ASHA by stopping."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Give up who has just come to a rung below its cut; everybody else goes on."""
        rungs = self.overview(snapshot.trials).rungs

        def beaten(trial: TrialView) -> str | None:
            place = rung_just_reached(trial, rungs)
            if place is None or rungs[place].passed(trial.number):
                return None
            return f"below the cut of rung {rungs[place].milestone}"

        words = "not below the cut of any rung"
        return stop_the_beaten(snapshot, beaten, words, self.newcomers(snapshot))


@dataclass(frozen=True)
class AshaPromote(Resources):
    """ASHA by promotion.

    When ``most_trials`` are used up and nobody is to be promoted, the best paused trial goes on:
    nothing else is to run.
    """

    def plan(self, snapshot: Snapshot) -> Plan:
        """Promote where that can be done, from the top rung down; else start a new trial."""
        view = self.overview(snapshot.trials)
        standings = view.kept("standings", Standings).see(view)
        return promote(snapshot, standings, self.newcomers(snapshot))


def promote(
    snapshot: Snapshot, standings: Collection[Standing], newcomers: int | None = None
) -> Plan:
    """A plan in which the standings, and at most so many newcomers, compete for single slots."""
    claims = sorted((s for s in standings if s.goes_on), key=_by_claim)
    waiting = [s for s in standings if not s.goes_on]
    orders: dict[int, Order] = {}
    thawed: list[Claim] = []
    if newcomers is None:
        rungs = {s.milestone for s in waiting}
        pauses = {rung: Pause(f"not among the best of rung {rung}") for rung in rungs}
        orders = {s.trial.number: pauses[s.milestone] for s in waiting}
    else:
        words = "the best of those that wait: nothing else is to run"
        thawed = [Claim(s.trial, words) for s in sorted(waiting, key=_by_claim)]
    return one_slot_each(
        snapshot,
        [Claim(s.trial, s.words) for s in claims],
        orders,
        newcomers=newcomers,
        leftovers=thawed,
        holds_until=snapshot.deadline,
    )


class Standing(NamedTuple):
    """Whether a trial may train beyond the highest rung that it has reached."""

    trial: TrialView
    milestone: int
    recorded: float
    goes_on: bool
    beyond: bool  #: on its way from one rung to the next
    words: str


class Standings:
    """Where all living trials stand; only those that may stand elsewhere are judged again."""

    def __init__(self) -> None:
        self._known: dict[int, Standing] = {}
        self._best: dict[int, frozenset[int]] = {}  # by milestone, by which all were judged

    def see(self, view: Overview) -> Collection[Standing]:
        """Judge who has changed, and who came to be or ceased to be among a rung's best."""
        moved = view.moved()
        for rung in view.rungs:
            before, now = self._best.get(rung.milestone, frozenset()), rung.best
            if now is not before:
                moved |= now ^ before
                self._best[rung.milestone] = now
        for number in sorted(moved):
            if number in view.alive:
                self._known[number] = stand(view.alive[number], view.rungs)
            else:
                self._known.pop(number, None)
        return self._known.values()


def stand(trial: TrialView, rungs: Sequence[Rung]) -> Standing:
    """Where a living trial stands on the rungs, of which the lowest is the first."""
    place = rung_just_reached(trial, rungs)
    if place is None:
        return Standing(trial, 0, 0.0, True, True, "on its way to the next rung")
    number, rung = trial.number, rungs[place]
    words = f"promoted: among the best of rung {rung.milestone}"
    recorded = rung.recorded[number]
    return Standing(trial, rung.milestone, recorded, number in rung.best, False, words)


def rung_just_reached(trial: TrialView, rungs: Sequence[Rung]) -> int | None:
    """The place of the rung at which a trial made its last report, if that was its first there."""
    number, reports = trial.number, trial.reports
    for place in reversed(range(len(rungs))):
        if number in rungs[place].recorded:
            first = first_report(reports, rungs[place].milestone)
            return place if first is reports[-1] else None
    return None


def _by_claim(standing: Standing) -> tuple[bool, int, bool, float, int]:
    trial = standing.trial
    rank = (-standing.milestone, not trial.running, -standing.recorded, trial.number)
    return (not standing.beyond, *rank)
