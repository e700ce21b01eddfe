"""Measured halving: the pruning rule for trials that cannot pause.

Rungs lie at 1, 2, 4, 8, ... reports. A trial's value at a rung is its report there and never
changes. Each report compares the trial at the newest rung that it has passed with all values ever
recorded there. The trial is pruned if at least a share ``top`` of the rung is better by more than
``gain``. In words: even with what training to the next rung usually brings, it would not be
where the top of the rung is now.

``gain`` is the median rise from the rung to the next one over the trials that made it, never
negative, times ``1 + log2(1 + n / left)``: a new trial would end that number of doublings short
of this one. ``n`` are the reports of the trial, ``left`` those that a new trial could still make.
With fewer than three rises known it is the gain of the rung below; with none it is 0.

``top`` is ``(1/6) ** trust``: the best sixth of a rung goes on where its ranks hold until the next
rung, and all trials where ranks mean nothing. The trust is ``min(1, r / 0.8)``, where ``r`` is the
rank correlation of the pairs of values, ``sin(pi / 2 * tau)`` of Kendall's tau (Greiner's
relation), shrunk to 0.8 with the weight of four pairs. Until three rises of the first rung are
known, half of each rung goes on.

The clock: where ``left`` is below ``n``, no new trial could come as far, and no trial is pruned;
else ``top`` is at least ``n / left``. A finite search: where no trial is left to start, nothing is
pruned; else ``top`` is at least the share of each rung with which the configurations last until
three tenths of a training before the deadline.

The rule is our own. The sixth, the 0.8 and the three tenths were chosen on synthetic curves and
recorded ones; changing each by half changes little.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from optuna_deadline.policies.api import WORST
from optuna_deadline.policies.rungs import BY_NUMBER, RungTable

TOP = 1 / 6  # of a rung always goes on
_HALF = 1 / 2  # before anything is measured: each rung then takes the same time
_FULL, _WEIGHT = 0.8, 4  # the correlation that is trusted in full, and what pairs it weighs
_KNOWN = 3  # rises that make a median
_SPARE = 0.3  # of a training, or of the time left, that the last ones of a finite search keep
_HALVINGS = 12  # of the interval in which the share is looked for
_ROUNDING = 1e-9


@dataclass(frozen=True)
class TimeLeft:
    """The time that a new trial would have.

    Attributes:
        reports: The reports that a trial which starts now could make by the deadline.
        horizon: Reports of a full training; None if unknown.
        to_start: Trials that are left to start; None in an endless search.
        slots: Trials that train at a time.
        startup: The time of a trial before its first step, in reports.
    """

    reports: float
    horizon: int | None = None
    to_start: int | None = None
    slots: int = 1
    startup: float = 0.0

    @classmethod
    def at_pace(
        cls,
        seconds: float,
        *,
        left: float,
        startup: float,
        horizon: int | None,
        to_start: int | None,
        slots: int,
    ) -> TimeLeft:
        """The same from seconds; ``seconds`` of a report are 0 as long as that is unknown."""
        known, training = seconds > 0, left - startup
        return cls(
            reports=training / seconds if known else math.copysign(math.inf, training),
            horizon=horizon,
            to_start=to_start,
            slots=max(1, slots),
            startup=startup / seconds if known else 0.0,
        )


@dataclass(frozen=True)
class PruneReason:
    """Why a trial is pruned.

    Attributes:
        rung: In reports.
        better: Trials that are better by more than the gain.
        values: Values at the rung, the trial's own included.
        gain: What training to the next rung usually brings.
        trust: How far ranks at the rung hold until the next, from 0 to 1.
    """

    rung: int
    better: int
    values: int
    gain: float
    trust: float

    def __str__(self) -> str:
        return (
            f"rung {self.rung}: {self.better} of {self.values} are better by more than "
            f"{self.gain:.3g}, the usual gain; ranks hold {self.trust:.2f}"
        )


class RankPairs:
    """The scores at one rung, paired with those at the next."""

    def __init__(self) -> None:
        self._rises: list[float] = []  # sorted
        self._pairs = np.empty((2, 16))  # here and at the next rung; grows by doubling
        self._agreeing = self._compared = 0

    def __len__(self) -> int:
        return len(self._rises)

    def add(self, here: float, there: float) -> None:
        """Add the scores of a trial that has reached the next rung too."""
        if not (math.isfinite(here) and math.isfinite(there)):
            return
        known = len(self)
        if known == self._pairs.shape[1]:
            self._pairs = np.concatenate([self._pairs, np.empty_like(self._pairs)], axis=1)
        self._pairs[:, known] = here, there
        insort(self._rises, there - here)
        self._compare(here, there, 1)

    def remove(self, here: float, there: float) -> None:
        """Undo :meth:`add`."""
        if not (math.isfinite(here) and math.isfinite(there)):
            return
        self._compare(here, there, -1)
        pairs, last = self._pairs[:, : len(self)], len(self) - 1
        pairs[:, ((pairs[0] == here) & (pairs[1] == there)).argmax()] = pairs[:, last]
        del self._rises[bisect_left(self._rises, there - here)]

    def _compare(self, here: float, there: float, sign: int) -> None:
        """Count how others agree with a pair; one does not compare with itself."""
        pairs = self._pairs[:, : len(self)]
        signs = np.sign(pairs[0] - here) * np.sign(pairs[1] - there)
        self._agreeing += sign * int(np.count_nonzero(signs > 0))
        self._compared += sign * int(np.count_nonzero(signs))

    @property
    def median_rise(self) -> float | None:
        """Never negative; None as long as too few are known."""
        if len(self) < _KNOWN:
            return None
        return max(0.0, self._rises[len(self) // 2])

    @property
    def trust(self) -> float:
        """The agreement of the order here with that at the next rung, from 0 to 1."""
        pairs = len(self)
        if pairs < 2 or not self._compared:
            return 1.0
        tau = 2 * self._agreeing / self._compared - 1
        correlation = math.sin(math.pi / 2 * tau)
        shrunk = (pairs * correlation + _WEIGHT * _FULL) / (pairs + _WEIGHT)
        return min(1.0, max(0.0, shrunk / _FULL))


class Rungs(RungTable):
    """All values of a study by rung, and how well ranks hold from each rung to the next."""

    def __init__(self) -> None:
        super().__init__(1, 2, BY_NUMBER)
        self._pairs: list[RankPairs] = []

    def record(self, number: int, place: int, score: float) -> bool:
        """Record a trial's score at a rung; NaN counts as the worst."""
        if not super().record(number, place, WORST if math.isnan(score) else score):
            return False
        while len(self._pairs) < len(self.rungs):
            self._pairs.append(RankPairs())
        for below in (place - 1, place):
            if pair := self._pair(number, below):
                self._pairs[below].add(*pair)
        return True

    def forget(self, number: int, reached: int) -> None:
        """Delete a trial's records on the first ``reached`` rungs."""
        for place in range(reached):
            if pair := self._pair(number, place):
                self._pairs[place].remove(*pair)
        super().forget(number, reached)

    def _pair(self, number: int, place: int) -> tuple[float, float] | None:
        """A trial's scores at a rung and at the next one, if it has both."""
        both = self.rungs[max(0, place) : place + 2]
        if len(both) < 2 or any([number not in rung.recorded for rung in both]):
            return None
        return both[0].recorded[number], both[1].recorded[number]

    def rank(self, number: int, place: int) -> tuple[int, int]:
        """The number of better values at a rung than the trial's, and the number of all.

        Both are 0 for a trial without a value there.
        """
        if (score := self._score(number, place)) is None:
            return 0, 0
        return self.rungs[place].better_than(score), len(self.rungs[place].ranked)

    def _score(self, number: int, place: int) -> float | None:
        return self.rungs[place].recorded.get(number) if place < len(self.rungs) else None

    def gain(self, place: int) -> float:
        """The median rise from a rung to the next, or from the nearest one below."""
        for below in reversed(self._pairs[: place + 1]):
            if (rise := below.median_rise) is not None:
                return rise
        return 0.0

    def judge(self, number: int, reports: int, left: TimeLeft) -> PruneReason | None:
        """Decide about a trial after a report: the reason to prune it, or None.

        Args:
            number: The trial.
            reports: The number of its reports.
            left: The time that a new trial would have.
        """
        place = reports.bit_length() - 1  # the newest rung that it has passed
        if place < 0 or (score := self._score(number, place)) is None or left.to_start == 0:
            return None
        if left.reports < reports or (left.horizon is not None and reports >= left.horizon):
            return None
        rung, trust = self.rungs[place], self._pairs[place].trust
        total, late = len(rung.ranked), reports / left.reports
        if total < 2:
            return None
        top = max(TOP**trust, late, _share_that_lasts(left))
        if len(self._pairs[0]) < _KNOWN:
            top = max(top, _HALF)
        gain = self.gain(place) * (1 + math.log2(1 + late))
        better = rung.better_than(score + gain)
        if better < max(1, math.ceil(top * total - _ROUNDING)):
            return None
        return PruneReason(rung.milestone, better, total, gain, trust)


def _share_that_lasts(left: TimeLeft) -> float:
    """The share of each rung at which a finite search lasts; 0 if it lasts at any share."""
    if left.to_start is None or left.horizon is None:
        return 0.0
    horizon = left.horizon
    time = left.slots * (left.reports - _SPARE * min(horizon, left.reports))

    def lasts(share: float) -> bool:
        cost = _reports_of_a_new_trial(share, horizon) + left.startup
        return (left.to_start or 0) * cost >= time

    if lasts(TOP):
        return 0.0
    low, high = TOP, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if lasts(middle) else (middle, high)
    return high


def _reports_of_a_new_trial(share: float, horizon: int) -> float:
    """Reports that a trial makes on average, of which each rung lets a share go on."""
    reached, reports, rung = 1.0, 1.0, 1
    while rung < horizon:
        reached *= share
        reports += reached * (min(2 * rung, horizon) - rung)
        rung *= 2
    return reports
