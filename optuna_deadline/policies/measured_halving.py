"""Measured halving: the pruning rule for trials that cannot pause.

Rungs lie at 1, 2, 4, 8, ... reports. A trial's value at a rung is its report there and never
changes. Each report compares the trial at the newest rung that it has passed with all values ever
recorded there. The trial is pruned if at least a share ``top`` of the rung is better by more than
``gain``. In words: even with what training to the next rung usually brings, it would not be
where the top of the rung is now.

``gain`` is the median rise from the rung to the next one over the trials that made it, never
negative, times ``1 + log2(1 + n / left)``: a new trial would end so many doublings short of this
one. ``n`` are the reports of the trial, ``left`` those that a new trial could still make. With
fewer than three rises known it is the gain of the rung below; with none it is 0.

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
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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


def _worst_if_nan(score: float) -> float:
    return -math.inf if math.isnan(score) else score


class RungStatistics:
    """The values at one rung, paired with those at the next."""

    def __init__(self) -> None:
        self.values: list[float] = []  # sorted
        self.rises: list[float] = []  # sorted
        self._pairs = np.empty((2, 16))  # here and at the next rung; grows by doubling
        self._agreeing = self._compared = 0

    def add(self, score: float) -> None:
        """Record the score of a trial; NaN counts as the worst."""
        insort(self.values, _worst_if_nan(score))

    def add_pair(self, here: float, there: float) -> None:
        """Record the scores of a trial that has reached the next rung too."""
        if not (math.isfinite(here) and math.isfinite(there)):
            return
        known = len(self.rises)
        if known == self._pairs.shape[1]:
            self._pairs = np.concatenate([self._pairs, np.empty_like(self._pairs)], axis=1)
        pairs = self._pairs[:, :known]
        signs = np.sign(pairs[0] - here) * np.sign(pairs[1] - there)
        self._agreeing += int(np.count_nonzero(signs > 0))
        self._compared += int(np.count_nonzero(signs))
        self._pairs[:, known] = here, there
        insort(self.rises, there - here)

    def better_than(self, score: float) -> int:
        """The number of values above a score."""
        return len(self.values) - bisect_right(self.values, score)

    @property
    def median_rise(self) -> float | None:
        """Never negative; None as long as too few are known."""
        if len(self.rises) < _KNOWN:
            return None
        return max(0.0, self.rises[len(self.rises) // 2])

    @property
    def trust(self) -> float:
        """How far the order here is that at the next rung, from 0 to 1."""
        pairs = len(self.rises)
        if pairs < 2 or not self._compared:
            return 1.0
        tau = 2 * self._agreeing / self._compared - 1
        correlation = math.sin(math.pi / 2 * tau)
        shrunk = (pairs * correlation + _WEIGHT * _FULL) / (pairs + _WEIGHT)
        return min(1.0, max(0.0, shrunk / _FULL))


class Rungs:
    """All values of a study by rung; scores are larger-is-better."""

    def __init__(self) -> None:
        self._rungs: list[RungStatistics] = []
        self._scores: dict[int, dict[int, float]] = {}

    def add(self, number: int, rung: int, score: float) -> bool:
        """Record a trial's score at a rung; False where one is known, which stays."""
        mine = self._scores.setdefault(number, {})
        if rung in mine:
            return False
        while len(self._rungs) <= rung:
            self._rungs.append(RungStatistics())
        mine[rung] = score
        self._rungs[rung].add(score)
        if rung - 1 in mine:
            self._rungs[rung - 1].add_pair(mine[rung - 1], score)
        if rung + 1 in mine:
            self._rungs[rung].add_pair(score, mine[rung + 1])
        return True

    def known(self, number: int) -> int:
        """How many rungs hold a score of the trial."""
        return len(self._scores.get(number, ()))

    def rank(self, number: int, rung: int) -> tuple[int, int]:
        """How many values at a rung are better than the trial's, and how many there are.

        Both are 0 for a trial without a value there.
        """
        score = self._scores.get(number, {}).get(rung)
        if score is None:
            return 0, 0
        values = self._rungs[rung]
        return values.better_than(_worst_if_nan(score)), len(values.values)

    def gain(self, rung: int) -> float:
        """The median rise from a rung to the next, or from the nearest one below."""
        for below in reversed(self._rungs[: rung + 1]):
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
        if place not in self._scores.get(number, ()) or left.to_start == 0:
            return None
        if left.reports < reports or (left.horizon is not None and reports >= left.horizon):
            return None
        rung, score = self._rungs[place], self._scores[number][place]
        total, late = len(rung.values), reports / left.reports
        if total < 2:
            return None
        top = max(TOP**rung.trust, late, _share_that_lasts(left))
        if len(self._rungs[0].rises) < _KNOWN:
            top = max(top, _HALF)
        gain = self.gain(place) * (1 + math.log2(1 + late))
        better = rung.better_than(_worst_if_nan(score) + gain)
        if better < max(1, math.ceil(top * total - _ROUNDING)):
            return None
        return PruneReason(2**place, better, total, gain, rung.trust)


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


def add_reports(rungs: Rungs, number: int, scores: Sequence[float]) -> None:
    """Record the scores of a trial at the rungs that it has reached since the last call."""
    place = rungs.known(number)
    while 2**place <= len(scores):
        rungs.add(number, place, scores[2**place - 1])
        place += 1
