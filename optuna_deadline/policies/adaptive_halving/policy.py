"""AdaptiveHalving: one halving over the whole study, as steep as the ranks seen so far allow.

Trials are compared at rungs a doubling of steps apart. Where ranks at a rung predict the ranks at
the next one, few trials go on and the time pays for new ones; where they do not, all go on. With
these shares a :mod:`course <optuna_deadline.policies.adaptive_halving.course>` is laid over the
time that is left, anew in each plan: as many trials start as leave time for all later rungs and
for the last ones to train in gangs. No trial starts that could not reach the last rung in time,
unless its slot were idle. A trial pauses at a rung until it is due. The policy is ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from optuna_deadline.policies.adaptive_halving.course import Course, Limits, Pool, longest_course
from optuna_deadline.policies.adaptive_halving.placement import (
    TO_FIRST,
    LastRung,
    Placement,
    Queue,
)
from optuna_deadline.policies.adaptive_halving.rungs import (
    reliabilities,
    rungs_up_to,
    shares_kept,
    telling,
)
from optuna_deadline.policies.api import Plan, Snapshot, TrialView
from optuna_deadline.policies.base import Resources, SlotCandidate, one_slot_each, running_first
from optuna_deadline.policies.pool_size import left_with, node_counts, stop_all, with_settled_pool
from optuna_deadline.policies.rungs import BEST_REPORT, Rung, RungTable
from optuna_deadline.policies.trial_index import TrialIndex

#: The first trials go to the second rung whatever they score: an unselected look at the ranks.
_FIRST = 12
#: The share of the study's time in which one trial, in the largest gang, reaches the last rung.
_DEPTH = 0.5
#: The course changes at most so often, in shares of the study's time.
_EVERY = 0.01
#: Number of possible last rungs per doubling, so that it does not move with each report.
_PLACES = 4
#: So many times as many trials make another pool worth its change.
_BETTER = 1.1
#: Doublings from the first rung to the last, as long as the length of a training is unknown.
_OPEN_END = 4


@dataclass(frozen=True)
class AdaptiveHalving(Resources):
    """A halving of all trials, planned towards the deadline, with gangs at its end.

    Args:
        min_resource: The first rung, in report steps; the first report if that is later.
        max_resource: The step at which a trial is done; None takes what the objectives say.
        reduction_factor: From one rung to the next in charts. The policy's own rungs are a
            doubling apart, and how many trials go on is measured.
        n_trials: Maximum number of trials; None for as many as the time allows.
    """

    reduction_factor: int = 2

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide which trials train to which rung, and how many new ones start."""
        if snapshot.money is None:
            return self._plan(snapshot)
        return replace(with_settled_pool(self._plan, snapshot), holds_until=None)

    def _plan(self, snapshot: Snapshot) -> Plan:
        if snapshot.money is not None and min(snapshot.money.left, snapshot.time_left) <= 0:
            return stop_all(snapshot)
        view = self.index_of(snapshot.trials)
        opened = [trial for trial in snapshot.trials if trial.state != "failed"]
        newcomers = self.trials_left_to_open(snapshot)
        paces = [trial.step_seconds for trial in opened if trial.step_seconds is not None]
        if not paces:
            alive = running_first(snapshot.alive)
            claims = [SlotCandidate(trial, TO_FIRST) for trial in alive]
            end = snapshot.deadline
            return one_slot_each(snapshot, claims, newcomers=newcomers, holds_until=end)
        usable = snapshot.largest_gang
        if snapshot.money is None:
            usable = min(usable, snapshot.capacity)
        pool = Pool(
            slots=max(1, snapshot.capacity),
            sizes=snapshot.speedup.useful(max(1, usable)),
            speedup=snapshot.speedup,
            step=max(1e-9, fmean(paces)),
            start=snapshot.overhead.total,
        )
        rungs = telling(self._rungs(snapshot, view, opened, pool))
        reliable = reliabilities(rungs)
        steps = [rung.milestone for rung in rungs]
        kept = shares_kept(rungs, reliable)
        progress = [steps[-1] if t.state == "complete" else t.step for t in opened if t.reports]
        most = math.inf if newcomers is None else len(opened) + newcomers

        def lay(pool: Pool, seconds: float, slot_seconds: float) -> Course:
            limits = Limits(seconds, slot_seconds, most)
            return longest_course(pool, steps, kept, progress, len(opened), limits, _FIRST)

        pool, course, until = _choose_pool(snapshot, pool, lay)
        last, wanted = LastRung(steps[-1], pool), None
        if snapshot.money is not None:
            wanted = max(pool.node, course.slots)
            snapshot = replace(snapshot, capacity=min(snapshot.capacity, wanted))
            fitting = [size for size in pool.sizes if size <= max(1, snapshot.capacity)]
            pool = replace(pool, slots=max(1, snapshot.capacity), sizes=fitting)
        queue = _queue(opened, rungs, course, reliable, pool.step)
        goals = [*steps[:-1], max(steps[-1], self.last_step_of(view.horizon) or 0)]
        placement = Placement(snapshot, pool, goals, last, until)
        return replace(placement.plan(queue, course, len(opened), newcomers), pool_slots=wanted)

    def _rungs(
        self, snapshot: Snapshot, view: TrialIndex, opened: Sequence[TrialView], pool: Pool
    ) -> list[Rung]:
        earliest = min((t.reports[0].step for t in opened if t.reports), default=1)
        first = max(self.min_resource, earliest)
        table = view.cached_object(("adaptive", first), lambda: RungTable(first, 2, BEST_REPORT))
        table.update(snapshot.trials, view.take_changed())
        study = snapshot.deadline - snapshot.started
        deepest = (_DEPTH * study - pool.start) * pool.speedup(pool.sizes[-1]) / pool.step
        last = self.last_step_of(view.horizon)
        if last is None:
            furthest = max((trial.step for trial in opened), default=0)
            last = max(first << _OPEN_END, 2 * furthest)
        if deepest < last:
            doublings = math.floor(math.log2(max(2.0, deepest / first)) * _PLACES) / _PLACES
            last = min(last, math.ceil(first * 2**doublings))
        return rungs_up_to(table, max(first, last))


def _choose_pool(
    snapshot: Snapshot, pool: Pool, lay: Callable[[Pool, float, float], Course]
) -> tuple[Pool, Course, float]:
    """The pool, its course, and until when time alone does not change that.

    Where slots cost money, the course is laid on some pools around the one that is held, with
    small gangs and large ones, and the pool with the most trials is taken.
    """
    study = snapshot.deadline - snapshot.started
    every = max(1e-9, _EVERY * study)
    ticks = math.floor((snapshot.now - snapshot.started) / every)
    left, until = study - ticks * every, snapshot.started + (ticks + 1) * every
    money = snapshot.money
    if money is None:
        return pool, lay(pool, left, math.inf), min(snapshot.deadline, until)
    found = []
    for nodes in node_counts(money, snapshot.time_left):
        seconds, slot_seconds = left_with(money, nodes, snapshot.time_left)
        for gang in pool.sizes:
            sizes = [size for size in pool.sizes if size <= gang]
            tried = replace(pool, slots=nodes * money.node, sizes=sizes, node=money.node)
            found.append((tried, lay(tried, seconds, slot_seconds)))

    def merit(choice: tuple[Pool, Course]) -> tuple[int, int, float]:
        course = choice[1]
        return course.counts[0], sum(course.counts), -course.slot_seconds

    best = max(found, key=merit)
    held = max([one for one in found if one[0].slots == money.held], key=merit, default=best)
    stays = best[1].counts[0] <= _BETTER * held[1].counts[0]
    return (*(held if stays else best), snapshot.deadline)


def _queue(
    opened: Sequence[TrialView],
    rungs: Sequence[Rung],
    course: Course,
    reliable: Sequence[float],
    pace: float,
) -> Queue:
    alive = {trial.number: trial for trial in opened if trial.alive}
    due: dict[int, SlotCandidate] = {}
    early: dict[int, SlotCandidate] = {}
    second = rungs[min(1, len(rungs) - 1)].milestone
    for trial in opened[:_FIRST]:
        if trial.alive and trial.reports and trial.step < second:
            due[trial.number] = SlotCandidate(
                trial, f"one of the first {_FIRST}, to rung {second}"
            )
    by_worth = _Worth(opened, pace)
    for place, (here, there) in enumerate(itertools.pairwise(rungs)):
        came, room = len(here.ranked), course.counts[place + 1]
        below = course.counts[place]
        sure = room if came >= below else came * room // max(1, below)
        for rank, (score, number) in enumerate(by_worth.first(room, here)):
            if score == math.inf or number not in alive:
                continue
            trial = alive[number]
            if trial.step >= there.milestone:
                continue
            reason = (
                f"rung {here.milestone}: {rank + 1} of {came}, {room} go on "
                f"(ranks hold {reliable[place]:.2f})"
            )
            (due if rank < sure else early).setdefault(number, SlotCandidate(trial, reason))
    early = {number: claim for number, claim in early.items() if number not in due}
    furthest = _furthest_first(rungs, alive)
    waiting = [
        SlotCandidate(trial, "a free slot that no trial above it can use")
        for trial in furthest
        if trial.number not in due and trial.number not in early
    ]
    leading = furthest if len(rungs[-1].ranked) < course.counts[-1] else []
    return Queue(list(due.values()), list(early.values()), waiting, leading)


class _Worth:
    """Trials by rank times the root of the pace: the chance to be the best, for its time.

    Args:
        trials: All trials.
        pace: Seconds of a step of a trial whose pace is not known.
    """

    def __init__(self, trials: Sequence[TrialView], pace: float) -> None:
        self._roots = {t.number: math.sqrt((t.step_seconds or pace) / pace) for t in trials}
        self._spread = max(self._roots.values()) / min(self._roots.values())

    def first(self, count: int, rung: Rung) -> list[tuple[float, int]]:
        """The first of a rung; no trial is among them from a rank that its pace cannot mend."""
        roots = self._roots
        among = rung.ranked[: math.ceil(count * self._spread) + 1]
        ranked = sorted(enumerate(among, start=1), key=lambda one: one[0] * roots[one[1][1]])
        return [entry for _, entry in ranked[:count]]


def _furthest_first(rungs: Sequence[Rung], alive: Mapping[int, TrialView]) -> list[TrialView]:
    """Live trials by the rung that they have reached and their rank there, if not diverged."""
    numbers = [
        number
        for rung in reversed(rungs)
        for score, number in rung.ranked
        if number in alive and score < math.inf
    ]
    return [alive[number] for number in dict.fromkeys(numbers)]
