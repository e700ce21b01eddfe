"""How fast trials train on k slots: S(k), learned from the segments seen so far."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

#: Before anything is measured a gang of k is taken to be k ** 0.9 times as fast (our choice:
#: hopeful enough to try a second slot, and one try replaces it by a measurement).
PRIOR_EXPONENT = 0.9

#: A further slot is worth having from this gain on (HyperSched's benefit threshold).
WORTHWHILE = 1.1


@dataclass(frozen=True)
class Pace:
    """How fast one segment trained: steps per second on a number of slots."""

    number: int
    slots: int
    steps: float
    seconds: float


@dataclass(frozen=True)
class Speedup:
    """S(k): how many times as fast as on one slot. ``measured`` maps k to S(k)."""

    measured: Mapping[int, float] = field(default_factory=dict)

    def __call__(self, slots: int) -> float:
        """S(k), interpolated between measured points and hopeful beyond the last."""
        if slots <= 0:
            return 0.0
        if slots == 1:
            return 1.0
        sizes, speeds = self._points
        place = bisect_left(sizes, slots)
        if place == len(sizes):
            return float(speeds[-1] * (slots / sizes[-1]) ** PRIOR_EXPONENT)
        if sizes[place] == slots:
            return speeds[place]
        below, above = sizes[place - 1], sizes[place]
        share = (slots - below) / (above - below)
        return speeds[place - 1] + share * (speeds[place] - speeds[place - 1])

    @cached_property
    def _points(self) -> tuple[list[int], list[float]]:
        points = sorted({1: 1.0, **self.measured}.items())
        return [slots for slots, _ in points], [speed for _, speed in points]

    def useful(self, limit: int) -> list[int]:
        """Gang sizes up to ``limit`` that gain enough over the next smaller useful one."""
        if limit not in self._useful:
            sizes = [1]
            for slots in range(2, limit + 1):
                if self(slots) >= WORTHWHILE * self(sizes[-1]):
                    sizes.append(slots)
            self._useful[limit] = sizes
        return list(self._useful[limit])

    @cached_property
    def _useful(self) -> dict[int, list[int]]:
        return {}


def step_seconds(paces: Iterable[Pace], speedup: Speedup) -> dict[int, float]:
    """Seconds that a step of each trial takes on one slot, from all its segments."""
    steps: dict[int, float] = defaultdict(float)
    seconds: dict[int, float] = defaultdict(float)
    for pace in paces:
        steps[pace.number] += pace.steps
        seconds[pace.number] += pace.seconds * speedup(pace.slots)
    return {number: seconds[number] / done for number, done in steps.items() if done > 0}


def learn_speedup(paces: Iterable[Pace], *, least_seconds: float = 2.0) -> Speedup:
    """S(k) as the median ratio over the trials that were seen on one slot and on k.

    Args:
        paces: What the segments measured.
        least_seconds: Segments shorter than this say too little and are left out.
    """
    steps: dict[tuple[int, int], float] = defaultdict(float)
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    for pace in paces:
        if pace.seconds > 0 and pace.steps > 0:
            steps[pace.number, pace.slots] += pace.steps
            seconds[pace.number, pace.slots] += pace.seconds
    rate = {key: steps[key] / seconds[key] for key in steps if seconds[key] >= least_seconds}
    ratios: dict[int, list[float]] = defaultdict(list)
    for (number, slots), speed in rate.items():
        if slots > 1 and (number, 1) in rate:
            ratios[slots].append(speed / rate[number, 1])
    return Speedup({slots: median(found) for slots, found in ratios.items()})


class Throughputs:
    """What :func:`learn_speedup` and :func:`step_seconds` say, kept up segment by segment."""

    def __init__(self) -> None:
        self._paces: dict[int, dict[int, Pace]] = defaultdict(dict)
        self._ratios: dict[int, Mapping[int, float]] = {}
        self._ranked: dict[int, list[float]] = defaultdict(list)  # those of all trials, by slots
        self._gangs: set[int] = set()  # trials that trained on several slots: S(k) judges them
        self._fresh: set[int] = set()
        self.speedup = Speedup()
        self.step_seconds: dict[int, float] = {}

    def take(self, segment: int, pace: Pace) -> None:
        """Take what one segment of a trial has measured so far."""
        self._paces[pace.number][segment] = pace
        self._fresh.add(pace.number)

    def learn(self) -> set[int]:
        """Bring both up to date; returns the trials whose pace was learned anew."""
        moved = False
        for number in self._fresh:
            ratios = self._compare(number)
            if ratios != self._ratios.get(number, {}):
                moved = True
                self._rank(self._ratios.get(number, {}), ratios)
                self._ratios[number] = ratios
        if moved:
            medians = {k: median(ranked) for k, ranked in self._ranked.items() if ranked}
            self.speedup = Speedup(medians)
            self._fresh |= self._gangs
        for number in self._fresh:
            paces = self._paces[number].values()
            steps = sum([pace.steps for pace in paces])
            if steps > 0:
                one = [pace.seconds * self.speedup(pace.slots) for pace in paces]
                self.step_seconds[number] = sum(one) / steps
        learned, self._fresh = self._fresh, set()
        return learned

    def _compare(self, number: int) -> Mapping[int, float]:
        """How one trial's gangs compare to its one slot, as far as that can be said."""
        paces = self._paces[number].values()
        if all([pace.slots == 1 for pace in paces]):
            return {}
        self._gangs.add(number)
        return learn_speedup(paces).measured

    def _rank(self, before: Mapping[int, float], after: Mapping[int, float]) -> None:
        for slots, ratio in before.items():
            ranked = self._ranked[slots]
            del ranked[bisect_left(ranked, ratio)]
        for slots, ratio in after.items():
            insort(self._ranked[slots], ratio)
