"""SEER (Dunlap et al., SoCC 2021): the best model by a deadline and within a budget.

Many configurations first, then fewer on larger gangs, on a pool that is bought for each round and
returned at once. Our sources have the paper's abstract and not its algorithm, so all decisions
here are our reconstruction. The outer programme chooses the shape of a successive halving that
finds the most, among those for which the inner one
(:mod:`~optuna_deadline.policies.seer.round_schedule`) has a schedule within the time and the
money. Both run in every plan with present measurements; a round ends by time, not by its slowest
trial.

If slots are free, the pool is given and only the deadline binds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from optuna_deadline.policies.api import (
    Money,
    Order,
    Pause,
    Plan,
    Retire,
    Run,
    Snapshot,
    TrialView,
)
from optuna_deadline.policies.base import Resources
from optuna_deadline.policies.pool_size import CLOSING, RESERVE, stop_all, with_settled_pool
from optuna_deadline.policies.rungs import DEFAULT_RUNGS
from optuna_deadline.policies.seer.round_schedule import Option, Rates, Work
from optuna_deadline.policies.seer.rounds import barrier, ladder, ranked, round_is_over
from optuna_deadline.policies.seer.shape_search import (
    Means,
    Stage,
    best_shape,
    next_round,
    survivors_after,
)


@dataclass(frozen=True)
class Seer(Resources):
    """The policy of SEER, as reconstructed."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Plan the whole study."""
        plan = with_settled_pool(self._plan, snapshot)
        if snapshot.money is not None:
            return plan
        return replace(plan, holds_until=_holds_until(snapshot))

    def _plan(self, snapshot: Snapshot) -> Plan:
        money = snapshot.money
        if snapshot.time_left <= 0 or (money is not None and money.left <= 0):
            return stop_all(snapshot)
        steps = self._ladder(snapshot)
        contenders = [t for t in snapshot.trials if t.state not in ("retired", "failed")]
        paces = [t.step_seconds for t in snapshot.trials if t.step_seconds is not None]
        if not paces:
            return _first(snapshot, contenders, self.trials_left_to_open(snapshot))
        means = _means(snapshot, steps, fmean(paces))
        retired = [trial for trial in snapshot.trials if trial.state == "retired"]
        last = barrier(retired, steps)
        rung, shape, missing = last + 1, None, 0
        if last < 0:
            shape = best_shape(means, sum(trial.step for trial in contenders))
            rung, missing = shape.first, max(0, shape.survivors[0] - len(snapshot.trials))
            if (left := self.trials_left_to_open(snapshot)) is not None:
                missing = min(missing, left)
        orders: dict[int, Order] = {}
        settled = snapshot.now - snapshot.overhead.total
        while not missing and contenders and rung < len(steps):
            since, final = steps[rung - 1] if rung else 0, rung + 1 == len(steps)
            pace = math.inf if final else means.pace  # the last round ends with the deadline
            if not round_is_over(contenders, since, steps[rung], pace, snapshot.speedup, settled):
                break
            if not final:
                keep = survivors_after(means, len(contenders), rung, None)[0]
                best = ranked(contenders, steps[rung])
                words = f"not among the {keep} best of {len(best)} at step {steps[rung]}"
                losers = [trial for trial in best[keep:] if trial.alive]
                orders.update((trial.number, Retire(words)) for trial in losers)
                retired += losers
                # An ended trial cannot be retired: the next plan counts it again.
                contenders = [t for place, t in enumerate(best) if place < keep or not t.alive]
            rung, shape = max(rung, barrier(retired, steps)) + 1, None  # as the next plan reads it
        if rung == len(steps) or not (contenders or missing):
            for trial in contenders:
                if trial.alive:
                    orders[trial.number] = Pause("trained to its end")
            return Plan(orders, gate_open=False, pool_slots=None if money is None else 0)
        later = shape.survivors[1:] if shape else None
        return _Round(snapshot, means, rung, contenders, missing, later).plan(orders)

    def _ladder(self, snapshot: Snapshot) -> tuple[int, ...]:
        last = self.last_step(snapshot.trials)
        if last is None:
            last = self.min_resource * self.reduction_factor ** (DEFAULT_RUNGS - 1)
        return ladder(self.min_resource, self.reduction_factor, max(last, self.min_resource))


class _Round:
    """The round in progress: its trials, their slots, and the pool."""

    def __init__(
        self,
        snapshot: Snapshot,
        means: Means,
        rung: int,
        contenders: Sequence[TrialView],
        missing: int,
        later: tuple[int, ...] | None,
    ) -> None:
        self._snapshot, self._means, self._rung, self._missing = snapshot, means, rung, missing
        self._target = means.steps[rung]
        self._contenders, self._later = len(contenders), later
        alive = [trial for trial in contenders if trial.alive]
        self._behind = sorted(
            (trial for trial in alive if trial.step < self._target),
            key=lambda trial: (-trial.slots, -trial.step, trial.number),
        )
        self._through = ranked([t for t in alive if t.step >= self._target], self._target)

    def plan(self, orders: dict[int, Order]) -> Plan:
        """Orders for the survivors and the others."""
        snapshot, money = self._snapshot, self._snapshot.money
        left = sum(self._target - trial.step for trial in self._behind)
        left += self._missing * self._target
        sizes = Counter(trial.slots for trial in self._behind if trial.running)
        gang = max(sizes, key=lambda size: (sizes[size], size), default=0)
        count = len(self._behind) + self._missing
        behind, steps = max(1, count), left / max(1, count)
        rest = self._later
        if rest is None:
            to_do = Work(behind, math.ceil(steps) * self._means.pace)
            rest = survivors_after(self._means, self._contenders, self._rung, to_do)
        stage = Stage(
            rung=self._rung,
            later=rest,
            behind=behind,
            steps=round(steps, 1),
            single=bool(self._missing),
            gang=gang,
        )
        option, later = next_round(self._means, stage)
        usable, pool = snapshot.capacity, None
        if money is not None:
            pool = self._pool(money, option, later, count)
            usable = min(usable, pool)
        size = max(1, min(option.gang, snapshot.largest_gang))
        words = f"round {self._rung}: to step {self._target} on {size}, {option.nodes} nodes"
        free = usable
        ahead = self._means.steps[self._rung + 1 : self._rung + 2] or (math.inf,)
        going_on = [t for t in self._through if t.running and t.step < ahead[0]]
        for trial in self._behind:
            share = min(size, free)
            if share:
                orders[trial.number] = Run(share, words)
                free -= share
            else:
                orders[trial.number] = Pause(f"waits for its turn in round {self._rung}")
        start = min(free, self._missing)
        free -= start
        for trial in going_on:
            if trial.number not in orders and trial.slots <= min(free, snapshot.largest_gang):
                orders[trial.number] = Run(trial.slots, "continues until the others have finished")
                free -= trial.slots
        for trial in self._through:
            orders.setdefault(trial.number, Pause(f"has finished round {self._rung}"))
        return Plan(
            orders,
            start=start,
            start_reason=f"round {self._rung}: to step {self._target}",
            gate_open=self._missing > 0,
            pool_slots=pool,
        )

    def _pool(self, money: Money, option: Option, later: int, count: int) -> int:
        """The round's nodes, minus those that its last trials and later rounds do not need."""
        if option.gang <= money.node:
            need = -(-count // (money.node // option.gang))
        else:
            need = count * money.nodes(option.gang)
        need = max(need, later)
        wanted = min(option.nodes, need) * money.node
        return min(wanted, money.affordable)


def _means(snapshot: Snapshot, steps: tuple[int, ...], pace: float) -> Means:
    """The rounded means of the plan, so that it changes only when something changes."""
    money = snapshot.money
    sizes = snapshot.speedup.useful(max(1, snapshot.largest_gang))
    node = max(1, snapshot.largest_gang)
    coming = money is not None and money.held > snapshot.capacity
    time = _time(snapshot)
    # The start-up is subtracted after rounding, so that it is what the requesting plan assumed.
    if money is None:
        terms = Money(math.inf, 0.0, 0.0, 0.0, node=node, offer=max(node, snapshot.capacity))
        left, held = math.inf, terms.nodes(snapshot.capacity)
    else:
        left = _round_down((money.left + money.ahead) * (1 - RESERVE))
        if coming:
            left -= money.held * money.price * money.startup
        # All else that changes from second to second is in these two, or in what is held.
        terms = replace(money, budget=max(0.0, left), spent=0.0, held=0, ahead=0.0)
        held = money.nodes(money.held)
        time -= money.startup if coming else 0.0
    return Means(
        steps=steps,
        pace=_digits(pace),
        rates=Rates(
            terms,
            tuple((size, round(snapshot.speedup(size), 2)) for size in sizes),
            _digits(snapshot.overhead.total),
            held,
        ),
        time=max(0.0, time),
    )


def _time(snapshot: Snapshot) -> float:
    """Rounded seconds in which trials can still train."""
    closing = 0.0 if snapshot.money is None else CLOSING + snapshot.overhead.stop
    return _round_down(snapshot.time_left - closing)


def _holds_until(snapshot: Snapshot) -> float:
    """Until when the time rounds to the same, and no other trial becomes due by its slots."""
    time, lost = _time(snapshot), snapshot.overhead.total
    settling = [trial.changed + lost for trial in snapshot.alive if trial.running]
    later = [instant for instant in settling if instant > snapshot.now]
    return min([snapshot.deadline - max(0.0, time), *later])


def _first(snapshot: Snapshot, contenders: Sequence[TrialView], left: int | None) -> Plan:
    """Before any measurement: an even pool with a trial on each slot."""
    money, usable, pool = snapshot.money, snapshot.capacity, None
    if money is not None:
        per_node = max(money.charge(snapshot.time_left), 1e-12)
        nodes = max(1, math.floor(money.left / per_node))
        pool = min(money.held or nodes * money.node, money.affordable)
        usable = min(usable, pool)
    orders: dict[int, Order] = {}
    alive = sorted(
        (trial for trial in contenders if trial.alive),
        key=lambda trial: (not trial.running, trial.number),
    )
    for index, trial in enumerate(alive):
        runs = index < usable
        orders[trial.number] = (
            Run(1, "its first step: nothing is measured yet") if runs else Pause("no free slot")
        )
    start = max(0, usable - len(alive))
    return Plan(orders, start=start if left is None else min(start, left), pool_slots=pool)


def _round_down(value: float) -> float:
    """Down to a multiple of a fiftieth of itself."""
    return math.exp(math.floor(math.log(value) / 0.02) * 0.02) if value > 0 else 0.0


def _digits(value: float) -> float:
    """Two significant digits."""
    return float(f"{value:.1e}")
