"""Asynchronous successive halving (Li et al., MLSys 2020), by stopping and by promotion.

*Promotion* is the paper's algorithm: a trial pauses at each rung and goes on once it is among the
best ``1 / reduction_factor`` there. *Stopping* is the variant of Ray Tune and Optuna: a trial that
comes to a rung below the cut is given up for good, so early trials pass easily. Both use one
slot for each trial, and plan for no deadline.

Our reconstruction: a plan sees all reports and not the moment of each, so a trial is judged from
its report at a rung until its next one; in the paper it is judged at that report. A trial that has
trained beyond a rung was promoted there.

Successive halving in step, and Hyperband over asynchronous brackets.

*Successive halving* (Jamieson & Talwalkar, AISTATS 2016): a cohort trains to a rung, the best
``1 / reduction_factor`` go on to the next. In step means that all trials wait for the last one;
slots idle meanwhile, which is what ASHA was made to mend.

*Hyperband* (Li et al., JMLR 2018) hedges the first rung: brackets begin at different rungs, here
each run as ASHA by promotion, as the paper on ASHA has it. How trials are shared between the
brackets is our reconstruction: in the proportions of the original's cohorts, by their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from optuna_deadline.policies.api import WORST, Order, Pause, Plan, Retire, Snapshot, TrialView
from optuna_deadline.policies.base import (
    Resources,
    SlotCandidate,
    one_slot_each,
    retire_beaten,
    running_first,
)
from optuna_deadline.policies.rungs import (
    DEFAULT_RUNGS,
    Rung,
    build_rungs,
    first_report,
    milestones,
)
from optuna_deadline.policies.trial_index import TrialIndex


@dataclass(frozen=True)
class Asha(Resources):
    """ASHA by stopping."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Retire trials that have just reached a rung below its cut; all others continue."""
        rungs = self.index_of(snapshot.trials).rungs

        def beaten(trial: TrialView) -> str | None:
            place = rung_just_reached(trial, rungs)
            if place is None or rungs[place].passed(trial.number):
                return None
            return f"below the cut of rung {rungs[place].milestone}"

        words = "not below the cut of any rung"
        return retire_beaten(snapshot, beaten, words, self.trials_left_to_open(snapshot))


@dataclass(frozen=True)
class AshaPromote(Resources):
    """ASHA by promotion.

    When ``most_trials`` have started and no trial is to be promoted, the best paused trial
    continues: nothing else can run.
    """

    def plan(self, snapshot: Snapshot) -> Plan:
        """Promote where that can be done, from the top rung down; else start a new trial."""
        view = self.index_of(snapshot.trials)
        standings = view.cached_object("standings", RungStandings).update(view)
        return promote(snapshot, standings, self.trials_left_to_open(snapshot))


def promote(
    snapshot: Snapshot, standings: Collection[RungStanding], newcomers: int | None = None
) -> Plan:
    """A plan in which the standings, and at most so many newcomers, compete for single slots."""
    claims = sorted((s for s in standings if s.goes_on), key=_priority)
    waiting = [s for s in standings if not s.goes_on]
    orders: dict[int, Order] = {}
    thawed: list[SlotCandidate] = []
    if newcomers is None:
        rungs = {s.milestone for s in waiting}
        pauses = {rung: Pause(f"not among the best of rung {rung}") for rung in rungs}
        orders = {s.trial.number: pauses[s.milestone] for s in waiting}
    else:
        words = "the best waiting trial: no other trial can run"
        thawed = [SlotCandidate(s.trial, words) for s in sorted(waiting, key=_priority)]
    return one_slot_each(
        snapshot,
        [SlotCandidate(s.trial, s.reason) for s in claims],
        orders,
        newcomers=newcomers,
        leftovers=thawed,
        holds_until=snapshot.deadline,
    )


class RungStanding(NamedTuple):
    """Whether a trial may train beyond the highest rung that it has reached."""

    trial: TrialView
    milestone: int
    recorded: float
    goes_on: bool
    is_beyond: bool  #: on its way from one rung to the next
    reason: str


class RungStandings:
    """Where all living trials stand; only those that may stand elsewhere are judged again."""

    def __init__(self) -> None:
        self._known: dict[int, RungStanding] = {}
        self._best: dict[int, frozenset[int]] = {}  # by milestone, by which all were judged

    def update(self, view: TrialIndex) -> Collection[RungStanding]:
        """Judge trials that changed, and those that joined or left the best of a rung."""
        moved = view.take_changed()
        for rung in view.rungs:
            before, now = self._best.get(rung.milestone, frozenset()), rung.best
            if now is not before:
                moved |= now ^ before
                self._best[rung.milestone] = now
        for number in sorted(moved):
            if number in view.alive:
                self._known[number] = standing_of(view.alive[number], view.rungs)
            else:
                self._known.pop(number, None)
        return self._known.values()


def standing_of(trial: TrialView, rungs: Sequence[Rung]) -> RungStanding:
    """Where a living trial stands on the rungs, of which the lowest is the first."""
    place = rung_just_reached(trial, rungs)
    if place is None:
        return RungStanding(trial, 0, 0.0, True, True, "on its way to the next rung")
    number, rung = trial.number, rungs[place]
    words = f"promoted: among the best of rung {rung.milestone}"
    recorded = rung.recorded[number]
    return RungStanding(trial, rung.milestone, recorded, number in rung.best, False, words)


def rung_just_reached(trial: TrialView, rungs: Sequence[Rung]) -> int | None:
    """The place of the rung at which a trial made its last report, if that was its first there."""
    number, reports = trial.number, trial.reports
    for place in reversed(range(len(rungs))):
        if number in rungs[place].recorded:
            first = first_report(reports, rungs[place].milestone)
            return place if first is reports[-1] else None
    return None


def _priority(standing: RungStanding) -> tuple[bool, int, bool, float, int]:
    trial = standing.trial
    rank = (-standing.milestone, not trial.running, -standing.recorded, trial.number)
    return (not standing.is_beyond, *rank)


@dataclass(frozen=True)
class SuccessiveHalving(Resources):
    """Cohorts in step, one after the other.

    Args:
        cohort: Trials of a cohort; None for so many that one reaches the last rung.
    """

    cohort: int | None = None

    def plan(self, snapshot: Snapshot) -> Plan:
        """Bring the present cohort one rung further."""
        steps = self._milestones(snapshot)
        size = self.cohort or self.reduction_factor ** (len(steps) - 1)
        members = sorted(snapshot.trials, key=lambda trial: trial.number)
        groups = [members[i : i + size] for i in range(0, len(members), size)]
        orders: dict[int, Order] = {}
        claims: list[SlotCandidate] = []
        newcomers = size
        for group in groups:
            missing = size - len(group) if self.trials_left_to_open(snapshot) != 0 else 0
            training = self._follow(group, missing, steps, orders, claims)
            # Only the last cohort may still take trials; a new one begins when all are through.
            newcomers = missing if missing else (0 if training else newcomers)
        left = self.trials_left_to_open(snapshot)
        newcomers = newcomers if left is None else min(newcomers, left)
        end = snapshot.deadline
        return one_slot_each(snapshot, claims, orders, newcomers=newcomers, holds_until=end)

    def _milestones(self, snapshot: Snapshot) -> list[int]:
        last = self.last_step(snapshot.trials)
        if last is None:
            last = self.min_resource * self.reduction_factor ** (DEFAULT_RUNGS - 1)
        return milestones(self.min_resource, self.reduction_factor, last)

    def _follow(
        self,
        group: Sequence[TrialView],
        missing: int,
        steps: Sequence[int],
        orders: dict[int, Order],
        claims: list[SlotCandidate],
    ) -> bool:
        """Order what a cohort's living members do; whether any of them still trains."""
        still = list(group)
        for milestone in steps:
            behind = [trial for trial in still if trial.alive and trial.step < milestone]
            if behind or missing:
                words = f"on its way to rung {milestone}"
                claims += [SlotCandidate(trial, words) for trial in running_first(behind)]
                for trial in still:
                    if trial.alive and trial.step >= milestone:
                        orders[trial.number] = Pause(f"waits at rung {milestone} for the others")
                return True
            keep = max(1, len(still) // self.reduction_factor)
            ranked = sorted(still, key=lambda trial: (-_score_at(trial, milestone), trial.number))
            for trial in ranked[keep:]:
                if trial.alive:
                    orders[trial.number] = Retire(f"not among the {keep} best of rung {milestone}")
            still = ranked[:keep]
        over = [trial for trial in still if trial.alive]
        claims += [SlotCandidate(trial, "the winner of its cohort continues") for trial in over]
        return bool(over)


@dataclass(frozen=True)
class Hyperband(Resources):
    """Asynchronous brackets, each with a first rung of its own."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Let the brackets' trials compete for the slots, from the top rung down."""
        pattern = self._pattern(self.last_step(snapshot.trials))
        standings = []
        for bracket in sorted(set(pattern)):
            mine = [t for t in snapshot.trials if pattern[t.number % len(pattern)] == bracket]
            first = self.min_resource * self.reduction_factor**bracket
            rungs = build_rungs(mine, first, self.reduction_factor)
            standings += [standing_of(trial, rungs) for trial in mine if trial.alive]
        return promote(snapshot, standings, self.trials_left_to_open(snapshot))

    def _pattern(self, last: int | None) -> tuple[int, ...]:
        if last is None:
            return _pattern(DEFAULT_RUNGS, self.reduction_factor)
        brackets = len(milestones(self.min_resource, self.reduction_factor, last))
        return _pattern(brackets, self.reduction_factor)


@lru_cache(maxsize=8)
def _pattern(brackets: int, reduction_factor: int) -> tuple[int, ...]:
    """The brackets of successive trials, in the proportions of Hyperband's cohorts.

    They are many where trainings are long, and the same for each plan.
    """
    keyed = []
    for bracket in range(brackets):
        rungs = brackets - bracket  # that a trial of this bracket passes
        count = math.ceil(brackets / rungs * reduction_factor ** (rungs - 1))
        # Spread evenly, so that every bracket is there from the beginning.
        keyed += [((place + 0.5) / count, bracket) for place in range(count)]
    return tuple([bracket for _, bracket in sorted(keyed)])


def _score_at(trial: TrialView, milestone: int) -> float:
    """The trial's score at a rung; a trial that never reached it, or failed, ranks worst."""
    if trial.state == "failed" or not trial.reports or trial.step < milestone:
        return WORST
    return first_report(trial.reports, milestone).score
