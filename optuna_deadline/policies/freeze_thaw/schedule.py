"""The course of a study: how many trials train to each rung, so that all of it fits the time left.

A halving is laid over the whole study instead of over cohorts: as many trials are opened as can
be, each rung lets one in so many go on, and one comes to the last step, on all slots that it can
use, when the deadline is there. Successive halving asks what a number of trials costs (Jamieson
and Talwalkar, AISTATS 2016); here the time is given, and the number follows, which is our rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from optuna_deadline.forecasting.throughput import Speedup

#: Where too many were opened, this is the ratio of one number of trials to the next that is tried.
_COARSE = 1.25


@dataclass(frozen=True)
class PoolCosts:
    """What training on a pool costs, in seconds.

    Attributes:
        capacity: Slots.
        largest_gang: Slots of the largest worker, or fewer, where no larger gang is wanted.
        speedup: S(k).
        step: A step on one slot.
        overhead: Of a start and a stop.
        node: Slots that are had and given back at once.
    """

    capacity: int
    largest_gang: int
    speedup: Speedup
    step: float
    overhead: float
    node: int = 1

    def gang(self, trials: int) -> int:
        """Slots that each of so many trials can use."""
        share = max(1, self.capacity // max(1, trials))
        return self.speedup.useful(min(share, self.largest_gang))[-1]

    def used(self, trials: int) -> int:
        """Slots, in whole nodes, that so many trials use."""
        slots = trials * self.gang(trials)
        return min(self.capacity, -(-slots // self.node) * self.node)

    def seconds(self, trials: int, steps: float) -> float:
        """Until some trials that together have so many steps to go have gone them."""
        if not trials:
            return 0.0
        if trials >= self.capacity:
            return (steps * self.step + trials * self.overhead) / self.capacity
        return steps / trials * self.step / self.speedup(self.gang(trials)) + self.overhead


@dataclass(frozen=True)
class RemainingBudget:
    """What is left for a course.

    Attributes:
        seconds: Until the deadline.
        slot_seconds: That the money pays for.
        newcomers: Trials that may still be opened; None: any number.
    """

    seconds: float
    slot_seconds: float = math.inf
    newcomers: int | None = None


@dataclass(frozen=True)
class HalvingSchedule:
    """How a study goes on.

    Attributes:
        rungs: Steps; the last one is the end of a training.
        counts: By rung, how many trials train to it.
        trials: Those that the counts are made for: fewer than were opened where time is short.
        seconds: What all of that takes from now on.
        slot_seconds: What it takes of slots, where those that no later rung uses are given back.
        slots: The most that any rung of it uses.
        undecided: So many rungs, the lowest, do not decide who goes on.
        finishes: Whether those who are halfway to a rung get there, whoever overtakes them.
    """

    rungs: tuple[int, ...]
    counts: tuple[int, ...]
    trials: int
    seconds: float
    slot_seconds: float
    slots: int
    undecided: int = 0
    finishes: bool = False

    @property
    def narrowed(self) -> bool:
        """Whether time has become too short for all that were opened: fewer go on than could."""
        return self.trials < self.counts[0]

    def fits(self, limits: RemainingBudget) -> bool:
        """Whether there are the time and the money for it."""
        return self.seconds <= limits.seconds and self.slot_seconds <= limits.slot_seconds


def longest_schedule(
    pool: PoolCosts,
    rungs: Sequence[int],
    progress: Sequence[int],
    share: float,
    limits: RemainingBudget,
    undecided: int = 0,
    halfway: Sequence[int] = (),
) -> HalvingSchedule:
    """The course with the most trials that can be gone in the time.

    Trials that were opened stay counted: where they are too many for the time, the rungs let
    fewer of them go on, in coarse steps, so that a plan does not waver with each second.

    Args:
        pool: What training costs.
        rungs: Steps, rising.
        progress: The steps of all trials that were opened.
        share: Of the trials at a rung, those that go on.
        limits: What is left.
        undecided: So many rungs, the lowest, do not decide who goes on.
        halfway: The steps of those that train. They get to their next rung if it costs none of
            the others a place further up: two that share the slots may both come to no end.
    """
    way = _remaining_work(tuple(rungs), tuple(progress))
    opened = len(progress)
    on_their_way = [0, *(sum(step > below for step in halfway) for below in rungs[:-1])]

    def course(trials: int, finishes: bool) -> HalvingSchedule:
        places = [max(0, place - undecided) for place in range(len(rungs))]
        going = [math.ceil(trials * share**place - 1e-9) for place in places]
        if finishes:
            going = [max(pair) for pair in zip(going, on_their_way, strict=True)]
        counts = (max(opened, trials), *going[1:])
        costs = way.costs(pool, counts)
        return HalvingSchedule(tuple(rungs), counts, trials, *costs, undecided, finishes)

    def longest(finishes: bool) -> HalvingSchedule:
        found = course(max(1, opened), finishes)
        if not found.fits(limits):
            while not found.fits(limits) and found.trials > 1:
                found = course(int(found.trials / _COARSE), finishes)
            return found
        room = int(limits.seconds * pool.capacity / (rungs[0] * pool.step)) + 1
        if limits.newcomers is not None:
            room = min(room, limits.newcomers)
        fits, most = opened, opened + room + 1
        while most - fits > 1:
            middle = (fits + most) // 2
            tried = course(middle, finishes)
            if tried.fits(limits):
                fits, found = middle, tried
            else:
                most = middle
        return found

    found = longest(finishes=True)
    if not any(on_their_way) or (found.fits(limits) and found.trials >= opened):
        return found
    without = longest(finishes=False)
    kept = found.fits(limits) and found.trials >= without.trials
    return found if kept else without


@lru_cache(maxsize=1)
def _remaining_work(rungs: tuple[int, ...], progress: tuple[int, ...]) -> _RemainingWork:
    """One for all the pools that a plan looks at."""
    return _RemainingWork(rungs, progress)


class _RemainingWork:
    """What some trials have yet to train, rung by rung, the furthest of them first."""

    def __init__(self, rungs: Sequence[int], progress: Sequence[int]) -> None:
        furthest = np.array(sorted(progress, reverse=True), dtype=np.int64)
        self._parts = []
        for below, rung in pairwise((0, *rungs)):
            parts = rung - np.clip(furthest, below, rung)
            steps, trials = np.cumsum(parts).tolist(), np.cumsum(parts > 0).tolist()
            self._parts.append((rung - below, [0, *steps], [0, *trials]))

    def costs(self, pool: PoolCosts, counts: Sequence[int]) -> tuple[float, float, int]:
        """Seconds, slot-seconds and slots of all rungs in turn, for so many trials to each."""
        total = paid = 0.0
        slots = 0
        for count, (whole, steps, trials) in zip(
            reversed(counts), reversed(self._parts), strict=True
        ):
            known = min(count, len(steps) - 1)
            new = count - known
            behind = trials[known] + new
            seconds = pool.seconds(behind, steps[known] + new * whole)
            slots = max(slots, pool.used(behind)) if behind else slots
            total += seconds
            paid += seconds * slots
        return total, paid, slots
