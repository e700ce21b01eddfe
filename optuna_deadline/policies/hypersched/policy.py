"""HyperSched (Liaw et al., SoCC'19): explore on single slots, then give all to the survivors.

From the authors' code and slides: rungs with pausing and retroactive checks, promotion from the
top rung down, the entrance gate, the allocation in score order by one of three allocators, the
gain test. Our reconstruction, where the code fails: a trial without a report ranks worst, not
best; the gate opens again if survivors are lost; once the survivors have ended, the best waiting
trials replace them, or only the best one if time is too short to compare them; a paused trial
resumes with any number of slots; slots that no survivor can use well go to paused trials; S(k)
and the overhead are learned from this study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.api import Order, Pause, Plan, Retire, Run, Snapshot, TrialView
from optuna_deadline.policies.base import Resources
from optuna_deadline.policies.gang_sizes import ALLOCATORS
from optuna_deadline.policies.hypersched.standings import (
    TrialStanding,
    TrialStandings,
    select_successors,
)
from optuna_deadline.policies.trial_index import TrialIndex

Value = TypeVar("Value")

_WAITS = Pause("waits: other trials rank above it")
_BEATEN = Retire("cannot win: too many trials rank above it")


@dataclass(frozen=True)
class HyperSched(Resources):
    """The policy of HyperSched.

    Args:
        min_resource: The first rung, in report steps.
        max_resource: The step at which a trial is done; None takes what the objectives say.
        reduction_factor: Every rung keeps one in this many.
        n_trials: Trials that are opened at most; None for as many as the time allows.
        recharge: A gang grows again only after this many overheads of training.
        allocator: How the pool is dealt to the survivors: "uniform", "top_job" or "softmax".
        gate: Whether new trials stop coming in once they could no longer catch up. The other two
            parts that can be left out to see what they are worth:
        retroactive: Whether a trial that passed a rung is paused when the cut there rises above
            it; else it is judged when it comes to a rung, and until its next report only.
        weigh_overhead: Whether a gang grows only where that outweighs the restart.

    Raises:
        DeadlineError: A number cannot be, or the allocator is unknown.
    """

    recharge: float = 5.0
    allocator: str = "uniform"
    gate: bool = True
    retroactive: bool = True
    weigh_overhead: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.allocator not in ALLOCATORS:
            known = ", ".join(sorted(ALLOCATORS))
            raise DeadlineError(f"allocator must be one of {known}, but got {self.allocator!r}.")
        if self.recharge < 0:
            raise DeadlineError(f"recharge must not be negative, but got {self.recharge!r}.")

    def plan(self, snapshot: Snapshot) -> Plan:
        """Plan the whole study."""
        view = self.index_of(snapshot.trials)
        field = view.cached_object("field", lambda: TrialStandings(self.retroactive)).update(view)
        entrance = self._entrance_seconds(snapshot, view, field)
        if snapshot.time_left <= entrance or self.trials_left_to_open(snapshot) == 0:
            return self._consolidate(snapshot, view, field)
        if len(field.survivors) > snapshot.capacity:
            plan = self._explore(snapshot, view, field)
        else:
            key = ("explore", snapshot.capacity)
            plan = self._once(view, key, lambda: self._explore(snapshot, view, field))
        return replace(plan, holds_until=snapshot.deadline - entrance)

    def _once(self, view: TrialIndex, key: Any, work_out: Callable[[], Value]) -> Value:
        """Cached while the rungs stay: without re-checks each report may change a standing."""
        return view.cached_by_state(key, work_out) if self.retroactive else work_out()

    def _entrance_seconds(
        self, snapshot: Snapshot, view: TrialIndex, field: TrialStandings
    ) -> float:
        """Seconds a newcomer needs: ``min(furthest * eta, R * step)`` as on the slides.

        Our reconstruction: only trials that are still above every cut count. If none is left,
        since the survivors have ended, a newcomer needs the time of a full training on the whole
        pool.
        """
        step = view.step_seconds
        if step is None:
            return 0.0
        first_report = snapshot.overhead.startup + step * self.min_resource
        if not self.gate:
            return first_report
        resource = self.last_step_of(view.horizon)
        whole = math.inf if resource is None else resource * step
        contenders = field.contenders
        if not contenders and math.isfinite(whole):
            return first_report + whole / snapshot.speedup(_useful(snapshot)[-1])
        furthest = max([view.alive[s.number].trained for s in contenders], default=view.furthest)
        return max(first_report, min(furthest * self.reduction_factor, whole))

    def _explore(self, snapshot: Snapshot, view: TrialIndex, field: TrialStandings) -> Plan:
        """One slot each; free slots go to promotable paused trials, then to new ones."""
        orders: dict[int, Order] = {}
        survivors = _ranked(view, field.survivors)
        for trial in survivors[snapshot.capacity :]:
            orders[trial.number] = Pause("fewer slots than trials: the best continue")
        for trial in survivors[: snapshot.capacity]:
            orders[trial.number] = _explore_order(trial.slots)
        free = max(0, snapshot.capacity - len(survivors))
        resumed = field.waiting_above_cuts[:free]
        for standing in resumed:
            orders[standing.number] = Run(1, standing.reason(view.alive[standing.number]))
        for standing in field.beaten:
            orders[standing.number] = Pause(standing.reason(view.alive[standing.number]))
        _pause_or_retire_others(orders, field.waiting[len(resumed) :], 4 * snapshot.capacity + 8)
        newcomers = self.trials_left_to_open(snapshot)
        free -= len(resumed)
        start = free if newcomers is None else min(free, newcomers)
        return Plan(orders=orders, start=start, gate_open=True)

    def _consolidate(self, snapshot: Snapshot, view: TrialIndex, field: TrialStandings) -> Plan:
        """Distribute the slots to the survivors, and slots they cannot use to the best others."""
        orders: dict[int, Order] = {}
        chosen = field.survivors or self._once(view, "heirs", lambda: field.successors(view))
        survivors = _ranked(view, chosen)
        for trial in survivors[snapshot.capacity :]:
            orders[trial.number] = Pause("fewer slots than trials: the best continue")
        survivors = survivors[: snapshot.capacity]
        parted_until = math.inf
        if not field.survivors:
            survivors, parted_until = self._share_among_successors(snapshot, view, survivors)
        moves = self._deal(snapshot, survivors)
        for trial, move in zip(survivors, moves, strict=True):
            orders[trial.number] = Run(move.slots, move.reason)
        free = snapshot.capacity - sum(move.slots for move in moves)
        growing = any(move.held_back for move in moves)
        others = field.others
        for standing in others:
            trial = view.alive[standing.number]
            if trial.number in orders:
                continue
            if free > 0 and trial.running:
                words = _moves(trial.slots, 1, "no trial above it can use the slot")
                orders[trial.number] = Run(1, words)
                free -= 1
            elif free > 0 and not growing:
                orders[trial.number] = Run(1, standing.reason(trial))
                free -= 1
            elif trial.running:
                orders[trial.number] = Pause(standing.reason(trial))
        _pause_or_retire_others(orders, others, 2 * snapshot.capacity)
        until = min([parted_until, *(move.until for move in moves)])
        return Plan(orders=orders, start=0, gate_open=False, holds_until=until)

    def _share_among_successors(
        self, snapshot: Snapshot, view: TrialIndex, successors: list[TrialView]
    ) -> tuple[list[TrialView], float]:
        """Which successors share the pool, and until when."""
        sizes = _useful(snapshot)
        scores = [trial.last_score for trial in successors]
        shares = ALLOCATORS[self.allocator](scores, sizes, snapshot.capacity)
        resource = self.last_step_of(view.horizon)
        ahead = [view.steps_to_a_rung(trial, resource) for trial in successors]
        return select_successors(snapshot, successors, shares, ahead, sizes[-1])

    def _deal(self, snapshot: Snapshot, survivors: Sequence[TrialView]) -> list[ResizeDecision]:
        """The slots of each survivor, the best first."""
        sizes = _useful(snapshot)
        scores = [trial.last_score for trial in survivors]
        shares = ALLOCATORS[self.allocator](scores, sizes, snapshot.capacity)
        moves = [
            self._resize(snapshot, sizes, trial, share)
            for trial, share in zip(survivors, shares, strict=True)
        ]
        excess = sum(move.slots for move in moves) - snapshot.capacity
        for index in reversed(range(len(moves))):  # a trial grows: the others go to their shares
            if excess > 0 and moves[index].slots > shares[index]:
                excess -= moves[index].slots - shares[index]
                words = _moves(survivors[index].slots, shares[index], "its share of the pool")
                moves[index] = ResizeDecision(shares[index], words)
        return moves

    def _resize(
        self, snapshot: Snapshot, sizes: Sequence[int], trial: TrialView, share: int
    ) -> ResizeDecision:
        """Grow if the gain outweighs the restart; otherwise keep the useful part."""
        if not trial.slots:
            return ResizeDecision(share, f"resumes on {share}: the best remaining trial")
        keep = max(size for size in sizes if size <= trial.slots)
        if share <= trial.slots:
            return ResizeDecision(keep, _moves(trial.slots, keep, "its share of the pool"))
        left = snapshot.time_left
        lost = snapshot.overhead.total if self.weigh_overhead else 0.0
        speedup = snapshot.speedup
        gain = speedup(share) * (left - lost) / (left * speedup(trial.slots)) if left else 0.0
        if gain <= WORTHWHILE:
            words = f"growing to {share} would gain {gain:.2f}x after {lost:.1f} s overhead"
            return ResizeDecision(keep, _moves(trial.slots, keep, words))
        recharged = trial.changed + self.recharge * snapshot.overhead.total
        if snapshot.now < recharged:
            words = _moves(trial.slots, keep, f"grows to {share} later")
            return ResizeDecision(keep, words, held_back=True, until=recharged)
        part = left / max(snapshot.deadline - snapshot.started, 1e-9)
        words = f"{part:.0%} of the time left, gain {gain:.1f}x after {lost:.1f} s overhead"
        ratio = speedup(share) / speedup(trial.slots)
        until = snapshot.deadline - lost / (1 - WORTHWHILE / ratio)  # the gain shrinks with time
        return ResizeDecision(share, _moves(trial.slots, share, words), until=until)


@dataclass(frozen=True)
class ResizeDecision:
    """The decision about one survivor's slots."""

    slots: int
    reason: str
    held_back: bool = False  #: it would grow, but its last change was too short ago
    until: float = math.inf  #: when to decide again


@lru_cache
def _explore_order(slots: int) -> Run:
    """The order of nearly all trials in nearly all plans."""
    return Run(1, _moves(slots, 1, "exploring on single slots"))


def _pause_or_retire_others(
    orders: dict[int, Order], others: Sequence[TrialStanding], kept: int
) -> None:
    """Keep the best paused trials; retire the others, which slow every Optuna call."""
    rest = [standing.number for standing in others if standing.number not in orders]
    orders.update(dict.fromkeys(rest[:kept], _WAITS))
    orders.update(dict.fromkeys(rest[kept:], _BEATEN))


def _useful(snapshot: Snapshot) -> list[int]:
    return snapshot.speedup.useful(min(snapshot.capacity, snapshot.largest_gang))


def _ranked(view: TrialIndex, standings: Sequence[TrialStanding]) -> list[TrialView]:
    trials = [view.alive[standing.number] for standing in standings]
    return sorted(trials, key=lambda trial: (-trial.last_score, trial.number))


def _moves(held: int, slots: int, why: str) -> str:
    """The change of a running trial's number of slots, in words; empty if it does not."""
    if slots == held:
        return f"keeps {slots}: {why}"
    return f"{'grows' if slots > held else 'shrinks'} {held} -> {slots}: {why}"
