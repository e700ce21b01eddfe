"""The course of a study: how many trials train to each rung, so that all fits the time left."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from optuna_deadline.forecasting.throughput import Speedup

#: Of the time left, kept in reserve.
_RESERVE = 0.01
#: Numbers of trials up to this one are all tried, and then each this much larger than the last.
_SINGLE, _RATIO = 32, 1.06
_MOST = 10**6  #: trials, also where training seems to take no time
_BEYOND = 1.5  # nothing fits with more trials than those of a course this much too long
_SOFTER = 20  # exponents from 1 to 0 that are tried where all configurations fit
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Pool:
    """What training costs on a pool, in seconds.

    Attributes:
        slots: Slots of the pool.
        sizes: Useful sizes of gangs, ascending.
        speedup: S(k).
        step: Seconds of a step on one slot, the mean over the trials.
        start: Seconds of a start.
        node: Slots that are bought together.
    """

    slots: int
    sizes: Sequence[int]
    speedup: Speedup
    step: float
    start: float
    node: int = 1

    def gang(self, trials: int) -> int:
        """Slots for each trial of a number of trials."""
        return self.sizes[max(0, bisect_right(self.sizes, self.slots // trials) - 1)]

    def kept(self, slots: int, free: int) -> int:
        """The largest useful gang within some slots and the free ones; 0 if there is none."""
        place = bisect_right(self.sizes, min(slots, free))
        return self.sizes[place - 1] if place else 0

    def seconds(self, trials: int, steps: float) -> float:
        """The time in which some trials make all their steps together."""
        if trials >= self.slots:
            return (steps * self.step + trials * self.start) / self.slots
        return steps / trials * self.step / self.speedup(self.gang(trials)) + self.start

    def used(self, trials: int) -> int:
        """The slots, in whole nodes, that a number of trials uses."""
        slots = min(self.slots, trials * self.gang(trials))
        return min(self.slots, -(-slots // self.node) * self.node)


@dataclass(frozen=True)
class Limits:
    """What is left: seconds until the deadline, paid slot-seconds, and all trials there can be."""

    seconds: float
    slot_seconds: float = math.inf
    trials: float = math.inf


@dataclass(frozen=True)
class Course:
    """The trials that train to each rung, and the time that this takes from now on."""

    counts: tuple[int, ...]
    seconds: float
    slot_seconds: float
    slots: int

    def fits(self, limits: Limits) -> bool:
        """Whether there are the time and the money for it."""
        within = self.seconds <= limits.seconds * (1 - _RESERVE)
        return within and self.slot_seconds <= limits.slot_seconds

    def is_beyond(self, limits: Limits) -> bool:
        """Whether it is far too long or too dear."""
        within = self.seconds <= _BEYOND * limits.seconds
        return not (within and self.slot_seconds <= _BEYOND * limits.slot_seconds)


@lru_cache(maxsize=64)
def _tried(most: int) -> tuple[int, ...]:
    """The numbers of trials that are tried, ascending."""
    found = list(range(1, _SINGLE + 1))
    while found[-1] < most:
        found.append(math.floor(found[-1] * _RATIO))
    return (*found[: bisect_left(found, most)], most)


def longest_course(
    pool: Pool,
    steps: Sequence[int],
    shares: Sequence[float],
    progress: Sequence[int],
    opened: int,
    limits: Limits,
    unselected: int = 0,
) -> Course:
    """The course with the most trials that fits.

    If all trials there can be fit, more of each rung go on until the time is filled.

    Args:
        pool: What training costs.
        steps: The rungs, ascending.
        shares: The share of each rung that goes on.
        progress: The steps of the trials so far.
        opened: Trials that were opened.
        limits: What is left.
        unselected: The first so many trials go to the second rung whatever they score.
    """
    course = _courses(pool, steps, progress, opened, limits.trials, unselected)
    passed = list(accumulate(shares, lambda a, b: a * b, initial=1.0))
    tried = _tried(int(min(limits.trials, _MOST)))
    # Below the number of slots gangs change with each trial, and more may take less time.
    above = bisect_left(tried, pool.slots)
    end = bisect_left(
        tried, True, above, len(tried), key=lambda trials: course(trials, passed).is_beyond(limits)
    )
    courses = (course(trials, passed) for trials in reversed(tried[:end]))
    best = next((found for found in courses if found.fits(limits)), None) or course(1, passed)
    if math.isfinite(limits.trials) and course(int(limits.trials), passed).fits(limits):
        for power in range(_SOFTER - 1, -1, -1):
            softer = [share ** (power / _SOFTER) for share in passed]
            found = course(int(limits.trials), softer)
            if not found.fits(limits):
                break
            best = found
    return best


def _courses(
    pool: Pool,
    steps: Sequence[int],
    progress: Sequence[int],
    opened: int,
    most: float,
    unselected: int = 0,
) -> Callable[[float, Sequence[float]], Course]:
    """Courses by their number of trials and the shares that reach each rung."""
    done = sorted(progress)
    behind = []
    for below, step in pairwise((0, *steps)):
        start, end = bisect_left(done, below + 1), bisect_left(done, step)
        behind.append(
            (step - below, len(done) - end, sum(done[start:end]) - below * (end - start))
        )

    def course(trials: float, passed: Sequence[float]) -> Course:
        counts: list[int] = []
        total = paid = 0.0
        for share in passed:
            count = int(min(most, math.ceil(trials * share - _ROUNDING)))
            if not counts:
                count = max(count, opened)
            if count < pool.slots:
                count = int(min(most, max(count, pool.slots // pool.gang(max(1, count)))))
            counts.append(min(count, counts[-1]) if counts else count)
        slots, trained = 0, [*counts]
        if len(counts) > 1:  # selected, or one of the first
            first = round(min(counts[0], unselected) * (1 - passed[1]))
            trained[1] = min(counts[0], counts[1] + first)
        for count, (length, reached, part) in zip(
            reversed(trained), reversed(behind), strict=False
        ):
            if (left := max(0, count - reached)) > 0:
                seconds = pool.seconds(left, max(0.0, left * length - part))
                slots = max(slots, pool.used(left))
                total += seconds
                paid += seconds * slots
        return Course(tuple(counts), total, paid, slots)

    return course
