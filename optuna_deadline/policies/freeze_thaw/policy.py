"""FreezeThaw, ours: one halving laid over the whole study, so that it ends at the deadline.

As many trials are opened as can be; trials freeze at each rung, and thaw as soon as they are among
as many as the :mod:`course <optuna_deadline.policies.freeze_thaw.schedule>` has room for; once
fewer are left than there are slots they train in gangs, so that one comes to its end, on all
slots that it can use, shortly before the deadline. With every report the course is laid anew by
the time that is left, by the paces and S(k) of this study, and by what its starts and stops take.

The name is that of Swersky, Snoek and Adams (Freeze-Thaw Bayesian Optimization, 2014), whose
trials freeze and thaw by forecasts of their curves. In replays of recorded curves forecasts,
calibrated or not, stopped worse than ranks do, so these go by ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from optuna_deadline.policies.api import Order, Pause, Plan, Retire, Run, Snapshot, TrialView
from optuna_deadline.policies.base import Resources, SlotCandidate, one_slot_each, running_first
from optuna_deadline.policies.freeze_thaw.controls import (
    TRAININGS_PER_CONTROL,
    Controls,
    choose_controls,
)
from optuna_deadline.policies.freeze_thaw.elimination import (
    TrialQueue,
    pairs_at,
    queue_trials,
    rank_correlation,
    share_kept,
)
from optuna_deadline.policies.freeze_thaw.pool_size import choose_pool, stop_all, with_settled_pool
from optuna_deadline.policies.freeze_thaw.schedule import (
    HalvingSchedule,
    PoolCosts,
    RemainingBudget,
    longest_schedule,
)
from optuna_deadline.policies.gang_sizes import growth_pays_until, share_out
from optuna_deadline.policies.rungs import DEFAULT_RUNGS, ladder
from optuna_deadline.policies.trial_index import TrialIndex

_WAITS = Pause("not among the best of its rung")
_BEATEN = Retire("cannot win: too many trials rank above it")


@dataclass(frozen=True)
class FreezeThaw(Resources):
    """A halving of all trials, planned towards the deadline, with gangs at its end.

    Args:
        min_resource: The first rung, in report steps.
        max_resource: The step at which a trial is done; None takes what the objectives say.
        reduction_factor: Every rung lets one in this many go on.
        most_trials: Trials that are opened at most; None for as many as the time allows.
    """

    reduction_factor: int = 3

    def plan(self, snapshot: Snapshot) -> Plan:
        """Who trains towards which rung, how many new trials there are, and on what pool."""
        if snapshot.money is None:
            return self._plan(snapshot)
        return replace(with_settled_pool(self._plan, snapshot), holds_until=None)

    def _plan(self, snapshot: Snapshot) -> Plan:
        if snapshot.money is not None and min(snapshot.money.left, snapshot.time_left) <= 0:
            return stop_all(snapshot)
        view = self.index_of(snapshot.trials)
        counted = [trial for trial in snapshot.trials if trial.state != "failed"]
        opened = sorted(counted, key=lambda trial: trial.number)
        if view.step_seconds is None:
            alive = running_first([trial for trial in opened if trial.alive])
            claims = [SlotCandidate(trial, "on its way to its first report") for trial in alive]
            newcomers, end = self.trials_left_to_open(snapshot), snapshot.deadline
            return one_slot_each(snapshot, claims, newcomers=newcomers, holds_until=end)
        pool, course, lots = self._schedule(snapshot, view, opened, view.step_seconds)
        queue = queue_trials(view, course, opened)
        room = course.counts[0] - len(opened)
        wanted = None
        if snapshot.money is not None:
            wanted = max(pool.node, course.slots)
            usable = min(snapshot.capacity, wanted)
            largest = min(snapshot.largest_gang, pool.largest_gang)
            snapshot = replace(snapshot, capacity=usable, largest_gang=largest)
        newcomers = room if snapshot.time_left > 0 else 0
        if 0 < newcomers < snapshot.capacity and _keeps_gang(snapshot, queue, course.rungs[-1]):
            newcomers = 0
        if len(queue.going) + newcomers >= snapshot.capacity:
            plan = one_slot_each(snapshot, _with_controls(queue, lots), newcomers=newcomers)
            orders, start, until = dict(plan.orders), plan.start, math.inf
        else:
            orders, start = _spread(snapshot, queue, newcomers, course.rungs[-1]), newcomers
            until = _growth_pays_until(snapshot, orders)
        kept = max(course.counts[1:], default=0) + 2 * snapshot.capacity + 8
        _pause_or_retire_others(orders, queue, lots.spared, kept)
        if course.seconds <= snapshot.time_left:
            until = min(until, snapshot.deadline - course.seconds)
        return Plan(
            orders=orders,
            start=start,
            start_reason=f"one of {course.counts[0]} that the time allows",
            gate_open=newcomers > 0,
            pool_slots=wanted,
            holds_until=until,
        )

    def _schedule(
        self, snapshot: Snapshot, view: TrialIndex, opened: Sequence[TrialView], step: float
    ) -> tuple[PoolCosts, HalvingSchedule, Controls]:
        last = self.last_step_of(view.horizon)
        if last is None:
            furthest = max([trial.step for trial in opened], default=0)
            shortest = self.min_resource * self.reduction_factor ** (DEFAULT_RUNGS - 1)
            last = max(shortest, furthest * self.reduction_factor)
        last = max(last, self.min_resource)
        pool = PoolCosts(
            max(1, snapshot.capacity), max(1, snapshot.largest_gang), snapshot.speedup, step,
            snapshot.overhead.total,
        )  # fmt: skip
        progress = [last if trial.state == "complete" else trial.step for trial in opened]
        halfway = [trial.step for trial in opened if trial.running]
        rungs = ladder(self.min_resource, self.reduction_factor, last)
        trust = view.cached_by_state(
            ("trust", rungs), lambda: rank_correlation(pairs_at(view, rungs, opened))
        )
        share = share_kept(trust, self.reduction_factor)
        room = int(
            (snapshot.deadline - snapshot.started)
            * pool.capacity
            / (TRAININGS_PER_CONTROL * last * step)
        )
        abreast = max(1, pool.capacity // 8)
        lots = view.cached_by_state(
            ("lots", rungs, room, abreast),
            lambda: choose_controls(view, rungs, opened, room, abreast),
        )

        def lay_over(pool: PoolCosts, limits: RemainingBudget) -> HalvingSchedule:
            return longest_schedule(pool, rungs, progress, share, limits, lots.undecided, halfway)

        return (*choose_pool(snapshot, pool, self.trials_left_to_open(snapshot), lay_over), lots)


def _with_controls(queue: TrialQueue, lots: Controls) -> list[SlotCandidate]:
    """Controls go before all others: what they have to say is wanted early."""
    words = "by lot: trained to its end, to see whether ranks hold"
    numbers = {trial.number for trial in lots.training}
    others = [claim for claim in queue.going if claim.trial.number not in numbers]
    return [*(SlotCandidate(trial, words) for trial in lots.training), *others]


def _spread(snapshot: Snapshot, queue: TrialQueue, newcomers: int, last: int) -> dict[int, Order]:
    """Fewer go on than there are slots: early ones join them, gangs take the rest."""
    free = snapshot.capacity - len(queue.going) - newcomers
    claims = [*queue.going, *queue.early[:free]]
    if not claims and not newcomers:
        claims = [SlotCandidate(trial, "the best that waits") for trial in queue.waiting[:1]]
    words = {claim.trial.number: claim.reason for claim in claims}
    trials = [claim.trial for claim in claims]
    if newcomers:
        dealt = {trial.number: Run(1, "") for trial in trials}
    else:
        dealt = _gangs(snapshot, trials, last)
    orders: dict[int, Order] = {n: replace(order, reason=words[n]) for n, order in dealt.items()}
    unused = snapshot.capacity - newcomers - sum(order.slots for order in dealt.values())
    others = [trial for trial in queue.waiting if trial.number not in orders]
    for trial in others[:unused]:
        orders[trial.number] = Run(1, "no trial above it can use the slot")
    return orders


def _keeps_gang(snapshot: Snapshot, queue: TrialQueue, last: int) -> bool:
    """Whether a gang would go on without newcomers: it is not taken apart for a few of them."""
    if len(queue.going) >= snapshot.capacity:
        return False
    gangs = [trial.number for trial in snapshot.trials if trial.running and trial.slots > 1]
    orders = _spread(snapshot, queue, 0, last) if gangs else {}
    kept = [orders[number] for number in gangs if number in orders]
    return any(isinstance(order, Run) and order.slots > 1 for order in kept)


def _gangs(snapshot: Snapshot, trials: Sequence[TrialView], last: int) -> dict[int, Run]:
    """Fewer trials than slots; who is new is about to be judged, so nobody grows before that."""

    def ahead(trial: TrialView) -> float:
        pace = trial.step_seconds or math.inf
        return (last - trial.step) * pace / snapshot.speedup(trial.slots)

    unknown = any(trial.running and not trial.reports for trial in trials)
    return share_out(snapshot, trials, unknown, ahead)


def _growth_pays_until(snapshot: Snapshot, orders: Mapping[int, Order]) -> float:
    """Until when the gangs that grow would."""
    slots = {trial.number: trial.slots for trial in snapshot.trials if trial.running}
    grown = [
        growth_pays_until(snapshot, slots[number], order.slots)
        for number, order in orders.items()
        if isinstance(order, Run) and 0 < slots.get(number, 0) < order.slots
    ]
    return min(grown, default=math.inf)


def _pause_or_retire_others(
    orders: dict[int, Order], queue: TrialQueue, spared: Collection[int], kept: int
) -> None:
    """Who may still be let go on stays; the others slow every call to Optuna."""
    for claim in (*queue.going, *queue.early):
        orders.setdefault(claim.trial.number, Pause("others go first"))
    for place, trial in enumerate(queue.waiting):
        if trial.number not in orders:
            waits = place < kept or trial.number in spared
            orders[trial.number] = _WAITS if waits else _BEATEN
