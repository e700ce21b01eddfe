"""The speed of trials on k slots, and the seconds without training, learned from segments."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from optuna_deadline.forecasting.regimes import (
    PaceChange,
    TrialRegimes,
    changes_ahead,
    learn_schedule,
    shifted,
)

#: Before any measurement, a gang of k is assumed to be k ** 0.9 times as fast (our choice:
#: optimistic enough to try a second slot, and one try replaces it by a measurement).
PRIOR_EXPONENT = 0.9

#: The same for processes on the cores of one CPU: two were 0.8 to 1.35 times as fast as one in the
#: demo's tasks. Here, too, the second slot is worth a try.
PRIOR_EXPONENT_OF_CPUS = 0.3

#: Before any measurement, a gang over several hosts has this share of its speed on one.
#: Four slots on two hosts ran at 0.35 to 0.81 of the speed of four on one in Pollux's traces of
#: six models, 0.61 the median: optimistic enough to try one of twice the size, and no larger.
CROSSING_SHARE = 0.6

#: A further slot pays from this gain on (HyperSched's benefit threshold).
WORTHWHILE = 1.1


@dataclass(frozen=True)
class SegmentPace:
    """Steps per second of one segment on a number of slots."""

    number: int
    slots: int
    steps: float
    seconds: float
    across: bool = False  #: whether its gang was on several hosts


@dataclass(frozen=True)
class Speedup:
    """S(k): the speed on k slots relative to one.

    Attributes:
        measured: S(k) by k, of gangs on one host.
        crossing: S(k) by k, of gangs on several hosts.
        pack: The largest gang that fits on one host; larger ones cross hosts. None if none does.
        exponent: Beyond the measured sizes, a gang of k is k ** exponent times as fast.
    """

    measured: Mapping[int, float] = field(default_factory=dict)
    crossing: Mapping[int, float] = field(default_factory=dict)
    pack: int | None = None
    exponent: float = PRIOR_EXPONENT

    def __call__(self, slots: int) -> float:
        """S(k), on as few hosts as possible."""
        crosses = self.pack is not None and slots > self.pack
        return self.across(slots) if crosses else self.packed(slots)

    def across(self, slots: int) -> float:
        """S(k) on several hosts: as measured, or scaled from the nearest measured size."""
        if slots in self.crossing:
            return self.crossing[slots]
        share = CROSSING_SHARE
        if self.crossing:
            near = min(self.crossing, key=lambda size: (abs(size - slots), size))
            share = self.crossing[near] / self.packed(near)
        return share * self.packed(slots)

    def packed(self, slots: int) -> float:
        """S(k) on one host, interpolated between measurements and optimistic beyond the last."""
        if slots <= 0:
            return 0.0
        if slots == 1:
            return 1.0
        sizes, speeds = self._points
        place = bisect_left(sizes, slots)
        if place == len(sizes):
            return float(speeds[-1] * (slots / sizes[-1]) ** self.exponent)
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


def _of(speedup: Speedup, pace: SegmentPace) -> float:
    return speedup.across(pace.slots) if pace.across else speedup.packed(pace.slots)


def _medians(ratios: Mapping[tuple[int, bool], list[float]], exponent: float) -> Speedup:
    packed, crossing = dict[int, float](), dict[int, float]()
    for (slots, across), found in ratios.items():
        if found:
            (crossing if across else packed)[slots] = median(found)
    return Speedup(packed, crossing, exponent=exponent)


_LEAST = 2.0  # seconds on a number of slots, below which its speed is not known

#: A size, and whether its gangs cross hosts; and their speed relative to one slot.
Kind = tuple[int, bool]
Ratios = Mapping[Kind, float]


class Throughputs:
    """The speeds of gangs and trials, updated by segment.

    Args:
        exponent: Of the speed of gangs that were not measured.

    Attributes:
        speedup: S(k) as the median ratio over the trials that trained on one slot and on k.
        step_seconds: Seconds that a step of each trial takes on one slot in its present regime.
        schedule: The changes of regime that all trials come to.
    """

    def __init__(self, exponent: float = PRIOR_EXPONENT) -> None:
        self._regimes: dict[int, TrialRegimes] = defaultdict(TrialRegimes)
        self._paces: dict[int, dict[int, SegmentPace]] = defaultdict(dict)
        self._ratios: dict[int, Ratios] = {}
        self._ranked: dict[Kind, list[float]] = defaultdict(list)  # those of all trials
        self._gangs: set[int] = set()  # trials on several slots, which S(k) is learned from
        self._fresh: set[int] = set()
        self.speedup = Speedup(exponent=exponent)
        self.step_seconds: dict[int, float] = {}
        self.schedule: Sequence[PaceChange] = ()

    def take(self, segment: int, pace: SegmentPace) -> None:
        """Record the measurement of one segment of a trial, unless no clock can have given it."""
        if 0 <= pace.steps < math.inf and 0 <= pace.seconds < math.inf:
            self._paces[pace.number][segment] = pace
            self._fresh.add(pace.number)

    def take_report(
        self, number: int, step: int, trained: float, slots: int, regime: str | None = None
    ) -> None:
        """Record a report of a trial, in the order of its steps; see :class:`TrialRegimes`."""
        regimes = self._regimes[number]
        later = self.schedule and self.schedule[len(regimes.changes) :]
        due = later[0] if later else None
        if regimes.take(step, trained, slots, regime, due):
            self.schedule = learn_schedule(self._regimes.values())
        if regimes.changes:
            self._fresh.add(number)

    def changes_ahead(self, number: int, shift: int = 0) -> Sequence[PaceChange]:
        """The changes of regime that a trial still comes to, as others did, in shifted steps."""
        return shifted(changes_ahead(self._regimes.get(number), self.schedule), shift)

    def learn(self) -> set[int]:
        """Update both; returns the trials with a new pace."""
        moved = False
        for number in self._fresh:
            ratios = self._compare(number)
            if ratios != self._ratios.get(number, {}):
                moved = True
                self._rank(self._ratios.get(number, {}), ratios)
                self._ratios[number] = ratios
        if moved:
            self.speedup = _medians(self._ranked, self.speedup.exponent)
            self._fresh |= self._gangs
        for number in self._fresh:
            paces = self._by_regime(number)[-1]
            steps = sum([pace.steps for pace in paces])
            if steps > 0:
                one = [pace.seconds * _of(self.speedup, pace) for pace in paces]
                self.step_seconds[number] = sum(one) / steps
        learned, self._fresh = self._fresh, set()
        return learned

    def _compare(self, number: int) -> Ratios:
        """The speed of one trial's gangs relative to its one slot, if one regime has both."""
        if all([pace.slots == 1 for pace in self._paces[number].values()]):
            return {}
        self._gangs.add(number)
        found = map(self._ratios_of, reversed(self._by_regime(number)))
        return next(filter(None, found), {})

    def _by_regime(self, number: int) -> Sequence[Collection[SegmentPace]]:
        """What a trial has trained by regime, the present one last.

        Of a gang, a segment within one regime says more than its reports: the first report after
        a resize counts for neither size. Reports do not say whether a gang was on several hosts,
        so such trials have one regime.
        """
        segments = self._paces[number]
        regimes = self._regimes[number]
        if not regimes.changes or any(pace.across for pace in segments.values()):
            return [segments.values()]
        gangs, start = [], 0.0
        for _, pace in sorted(segments.items()):
            if pace.slots > 1:
                gangs.append((regimes.regime_within(start, start + pace.seconds), pace))
            start += pace.seconds
        found = []
        for trained in regimes.stretches:
            whole = [pace for regime, pace in gangs if regime is trained]
            known = {pace.slots for pace in whole}
            rest = [SegmentPace(number, k, *trained[k]) for k in trained.keys() - known]
            found.append([*whole, *rest])
        return found

    @staticmethod
    def _ratios_of(paces: Collection[SegmentPace]) -> Ratios:
        steps: dict[Kind, float] = defaultdict(float)
        seconds: dict[Kind, float] = defaultdict(float)
        for pace in paces:
            if pace.seconds > 0 and pace.steps > 0:
                steps[pace.slots, pace.across] += pace.steps
                seconds[pace.slots, pace.across] += pace.seconds
        speeds = {kind: steps[kind] / seconds[kind] for kind in steps if seconds[kind] >= _LEAST}
        one = speeds.get((1, False))
        return {kind: speed / one for kind, speed in speeds.items() if kind[0] > 1} if one else {}

    def _rank(self, before: Ratios, after: Ratios) -> None:
        for kind, ratio in before.items():
            ranked = self._ranked[kind]
            del ranked[bisect_left(ranked, ratio)]
        for kind, ratio in after.items():
            insort(self._ranked[kind], ratio)


def learn_throughputs(
    paces: Iterable[SegmentPace],
    reports: Iterable[tuple[int, int, float, int, str | None]] = (),
    exponent: float = PRIOR_EXPONENT,
) -> Throughputs:
    """The speeds from these segments and reports: number, step, seconds, slots, regime."""
    found = Throughputs(exponent)
    for report in reports:
        found.take_report(*report)
    for segment, pace in enumerate(paces):
        found.take(segment, pace)
    found.learn()
    return found


#: Seconds assumed before any measurement (a warm fork, a restore, the first batch).
PRIOR_STARTUP = 1.0
PRIOR_STOP = 0.5

#: Round trips from the end of training to the end of the study, as counted with four trials: those
#: of the last reads and plans, and those of each trial. Below this many seconds they are ignored.
_TRIPS, _TRIPS_OF_EACH, _NEAR = 200, 60, 0.003

#: The number of measured round trips that is required.
FEWEST_TRIPS = 3

#: The number of newest measurements that is used.
KEPT_COSTS = 50


@dataclass(frozen=True)
class Overhead:
    """Seconds lost by starting and by leaving; a resize or a resume pays both."""

    startup: float = PRIOR_STARTUP
    stop: float = PRIOR_STOP

    @property
    def total(self) -> float:
        """Seconds lost by one resize."""
        return self.startup + self.stop


def closing_seconds(stop: float) -> float:
    """Seconds before the deadline at which ranks must stop, so that all ends are reported in time.

    Args:
        stop: Seconds that the slowest rank took to leave so far; beyond 10 it is killed instead.
    """
    return 1.0 + 1.5 * min(stop, 10.0)


def distant_database_seconds(trips: Sequence[float], slots: int, total: float) -> float:
    """Seconds earlier than :func:`closing_seconds`, if the database is far away.

    Trials are written, reported to Optuna and ended one after the other, with many round trips
    each.

    Args:
        trips: Seconds of the newest round trips; the shortest counts, because stalls pass.
        slots: How many trials may train until then.
        total: Seconds from start to deadline: at most a tenth is spent on this.
    """
    if len(trips) < FEWEST_TRIPS:
        return 0.0
    far = max(0.0, min(trips) - _NEAR) * (_TRIPS + slots * _TRIPS_OF_EACH)
    return max(0.0, min(total / 10, far))


def leaving_seconds(stop: float, silence: float = 0.0) -> float:
    """Seconds before its own time limit at which a worker leaves, so that its trials are saved.

    Unlike at a deadline, nothing is killed to be in time, so slow trials get the time they need.

    Args:
        stop: Seconds that the slowest trial took to save and leave so far.
        silence: The longest time without a message so far: reading a directive may take as long.
    """
    return 5.0 + 1.5 * max(stop, silence)


def learn_overhead(startups: Iterable[float], stops: Iterable[float]) -> Overhead:
    """The 90th percentile of the measurements, as HyperSched takes of its start-ups.

    HyperSched counts start-up alone; the cost of leaving is our addition.
    """
    return Overhead(
        startup=_high(list(startups), PRIOR_STARTUP), stop=_high(list(stops), PRIOR_STOP)
    )


def _high(seconds: list[float], prior: float) -> float:
    if not seconds:
        return prior
    ordered = sorted(seconds[-KEPT_COSTS:])
    return max(0.0, ordered[min(len(ordered) - 1, math.ceil(0.9 * len(ordered)) - 1)])
