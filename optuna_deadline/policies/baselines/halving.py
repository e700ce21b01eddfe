"""Successive halving in step, and Hyperband over asynchronous brackets.

*Successive halving* (Jamieson & Talwalkar, AISTATS 2016): a cohort trains to a rung, the best
``1 / reduction_factor`` go on to the next. In step means that everybody waits for the last one;
slots idle meanwhile, which is what ASHA was made to mend.

*Hyperband* (Li et al., JMLR 2018) hedges the first rung: brackets begin at different rungs, here
each run as ASHA by promotion, as the paper on ASHA has it. How trials are shared between the
brackets is our reconstruction: in the proportions of the original's cohorts, by their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from optuna_deadline.policies.api import Order, Pause, Plan, Retire
from optuna_deadline.policies.base import Resources
from optuna_deadline.policies.baselines.asha import promote, stand
from optuna_deadline.policies.rungs import UNSTATED, build_rungs, first_report, milestones
from optuna_deadline.policies.single import Claim, one_slot_each, running_first
from optuna_deadline.policies.snapshot import WORST, Snapshot, TrialView


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
        claims: list[Claim] = []
        newcomers = size
        for group in groups:
            missing = size - len(group) if self.newcomers(snapshot) != 0 else 0
            training = self._follow(group, missing, steps, orders, claims)
            # Only the last cohort may still take trials; a new one begins when all are through.
            newcomers = missing if missing else (0 if training else newcomers)
        left = self.newcomers(snapshot)
        newcomers = newcomers if left is None else min(newcomers, left)
        end = snapshot.deadline
        return one_slot_each(snapshot, claims, orders, newcomers=newcomers, holds_until=end)

    def _milestones(self, snapshot: Snapshot) -> list[int]:
        last = self.last_step(snapshot.trials)
        if last is None:
            last = self.min_resource * self.reduction_factor ** (UNSTATED - 1)
        return milestones(self.min_resource, self.reduction_factor, last)

    def _follow(
        self,
        group: Sequence[TrialView],
        missing: int,
        steps: Sequence[int],
        orders: dict[int, Order],
        claims: list[Claim],
    ) -> bool:
        """Order what a cohort's living members do; whether any of them still trains."""
        still = list(group)
        for milestone in steps:
            behind = [trial for trial in still if trial.alive and trial.step < milestone]
            if behind or missing:
                words = f"on its way to rung {milestone}"
                claims += [Claim(trial, words) for trial in running_first(behind)]
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
        claims += [Claim(trial, "the winner of its cohort goes on") for trial in over]
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
            standings += [stand(trial, rungs) for trial in mine if trial.alive]
        return promote(snapshot, standings, self.newcomers(snapshot))

    def _pattern(self, last: int | None) -> tuple[int, ...]:
        if last is None:
            return _pattern(UNSTATED, self.reduction_factor)
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
    """What the trial recorded at a rung; who never came there, or failed, ranks worst."""
    if trial.state == "failed" or not trial.reports or trial.step < milestone:
        return WORST
    return first_report(trial.reports, milestone).score
