"""Successive halving: asynchronous by stopping and by promotion, synchronous, and Hyperband.

*ASHA* (Li et al., MLSys 2020). By *promotion*, the paper's algorithm: a trial pauses at each rung
and continues once it is among the best ``1 / reduction_factor`` there. By *stopping*, the variant
of Ray Tune and Optuna: a trial that reaches a rung below the cut ends, so early trials pass
easily. Both use one slot per trial and no deadline. Our reconstruction: a plan sees all reports
and not the moment of each, so a trial is compared from its report at a rung until its next one; in
the paper it is compared at that report. A trial that has trained beyond a rung was promoted there.

*Successive halving* (Jamieson & Talwalkar, AISTATS 2016): a cohort trains to a rung, and the best
``1 / reduction_factor`` continue to the next. All trials wait for the last one, so slots idle;
ASHA was made to avoid that.

*Hyperband* (Li et al., JMLR 2018) hedges the first rung: brackets start at different rungs, here
each as ASHA by promotion, as the paper on ASHA describes. Our reconstruction: trials are assigned
to brackets by their numbers, in the proportions of the original's cohorts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from optuna_deadline.errors import DeadlineError
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

    When ``n_trials`` have started and no trial is to be promoted, the best paused trial
    continues: nothing else can run.
    """

    def plan(self, snapshot: Snapshot) -> Plan:
        """Promote from the top rung down where possible; otherwise start a new trial."""
        view = self.index_of(snapshot.trials)
        standings = view.cached_object("standings", RungStandings).update(view)
        return promote(snapshot, standings, self.trials_left_to_open(snapshot))


def promote(
    snapshot: Snapshot, standings: Collection[RungStanding], newcomers: int | None = None
) -> Plan:
    """A plan in which the standings and the newcomers compete for single slots."""
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
    """The standings of all live trials; only those that may have changed are updated."""

    def __init__(self) -> None:
        self._known: dict[int, RungStanding] = {}
        self._best: dict[int, frozenset[int]] = {}  # by milestone, the cuts of the last update

    def update(self, view: TrialIndex) -> Collection[RungStanding]:
        """Update trials that changed, and those that joined or left the best of a rung."""
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
    """The standing of a live trial on the rungs, the lowest first."""
    place = rung_just_reached(trial, rungs)
    if place is None:
        return RungStanding(trial, 0, 0.0, True, True, "on its way to the next rung")
    number, rung = trial.number, rungs[place]
    words = f"promoted: among the best of rung {rung.milestone}"
    recorded = rung.recorded[number]
    return RungStanding(trial, rung.milestone, recorded, number in rung.best, False, words)


def rung_just_reached(trial: TrialView, rungs: Sequence[Rung]) -> int | None:
    """The index of the rung of a trial's last report, if that was its first report there."""
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
    """Synchronous cohorts, one after the other.

    Args:
        cohort: Trials in a cohort; None for ``reduction_factor`` to the power of the rungs.
    """

    cohort: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort is not None and self.cohort < 1:
            raise DeadlineError(f"cohort must be a number from 1, but got {self.cohort!r}.")

    def plan(self, snapshot: Snapshot) -> Plan:
        """Train the present cohort to its next rung."""
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
            # Only the last cohort may still get trials; a new one starts when all are through.
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
        """Order a cohort's live members; returns whether any of them still trains."""
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
    """Asynchronous brackets, each with its own first rung."""

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

    Long trainings have many; they are the same for each plan.
    """
    keyed = []
    for bracket in range(brackets):
        rungs = brackets - bracket  # that a trial of this bracket passes
        count = math.ceil(brackets / rungs * reduction_factor ** (rungs - 1))
        # Spread evenly, so that every bracket exists from the beginning.
        keyed += [((place + 0.5) / count, bracket) for place in range(count)]
    return tuple([bracket for _, bracket in sorted(keyed)])


def _score_at(trial: TrialView, milestone: int) -> float:
    """The trial's score at a rung; a trial that never reached it, or failed, ranks worst."""
    if trial.state == "failed" or not trial.reports or trial.step < milestone:
        return WORST
    return first_report(trial.reports, milestone).score
