"""Fair rates of a pool's studies, and whole slots from them by turns. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

#: Shares this close to a whole number count as whole: they are floats.
_WHOLE = 1e-9
#: Slot-seconds of a turn: at least, and in moves of a trial.
_TURN, _RESTARTS = 60.0, 10.0


@dataclass(frozen=True)
class StudyView:
    """What a divider knows about one study. Times are the database's seconds.

    Attributes:
        study_id: Its key in the table.
        name: Its name.
        weight: Its share relative to a study of weight 1.
        joined: When its first worker joined the pool.
        deadline: When it ends.
        live: Trials that can still be trained.
        slots: Slots that are lent to it now.
        most: Slots that it could use if it were alone; 0 if it needs none.
        done: Slot-seconds trained so far.
        remaining: Expected further slot-seconds; None if unknown.
        served: Slot-seconds that were lent to it since it joined, used or not.
        entitled: Slot-seconds of its rate since it joined.
        work: Slot-seconds that it has to do by its deadline, trials that are not open yet
            included, and 0 while that is not known; None for a search, to which each further
            slot-second is of use.
        span: Seconds that its longest trial still needs on one slot.
        restart: Seconds that a trial loses if it moves.
        spent: The part of its purse that it has spent since it joined, from 0 to 1.
        counted: Until when that is known.
    """

    study_id: int
    name: str = ""
    weight: float = 1.0
    joined: float = 0.0
    deadline: float = math.inf
    live: int = 0
    slots: int = 0
    most: int = 0
    done: float = 0.0
    remaining: float | None = None
    served: float = 0.0
    entitled: float = 0.0
    work: float | None = None
    span: float = 0.0
    restart: float = 0.0
    spent: float = 0.0
    counted: float = 0.0

    @property
    def lag(self) -> float:
        """Slot-seconds behind its fair share; negative if it is ahead."""
        return self.entitled - self.served

    def time_left(self, now: float) -> float:
        """Seconds until its deadline, never negative."""
        return max(0.0, self.deadline - now)


@dataclass(frozen=True)
class PoolSnapshot:
    """A pool at one instant: slots that live workers offer, studies that live workers serve."""

    now: float
    capacity: int
    studies: tuple[StudyView, ...] = ()


class Divider(Protocol):
    """Anything with ``rates``: a pure, deterministic function of the snapshot."""

    def rates(self, pool: PoolSnapshot) -> dict[int, float]:
        """Slots by study id, in fractions: at most ``most`` each, and the capacity together."""


@dataclass(frozen=True)
class EvenDivider:
    """Weighted max-min fair shares: each study gets slots in proportion to its time in the pool.

    Slots that a study cannot use go to the others. If there are as many slots as studies that need
    one, each of them gets at least one.
    """

    def rates(self, pool: PoolSnapshot) -> dict[int, float]:
        """The fair shares, in fractions of slots."""
        studies = needy(pool)
        least = 1.0 if len(studies) <= pool.capacity else 0.0
        low = {study.study_id: least for study in studies}
        return fill(pool, low, {study.study_id: study.weight for study in studies})


def needy(pool: PoolSnapshot) -> list[StudyView]:
    """The studies that need slots."""
    return [study for study in pool.studies if study.most > 0]


def fill(
    pool: PoolSnapshot, low: Mapping[int, float], weights: Mapping[int, float]
) -> dict[int, float]:
    """Max-min fair rates with a least rate for each study.

    One level is raised for all until the slots are used: a rate is level * weight, between the
    study's least rate and the slots that it could use.

    Args:
        pool: The pool.
        low: Least rates by study; together at most the capacity.
        weights: By study, above 0.

    Returns:
        A rate for each study of the pool.
    """
    rates = {study.study_id: 0.0 for study in pool.studies}
    studies = needy(pool)
    if not studies:
        return rates
    total = float(min(pool.capacity, sum(study.most for study in studies)))

    def filled(level: float) -> dict[int, float]:
        return {
            s.study_id: min(max(level * weights[s.study_id], low[s.study_id]), float(s.most))
            for s in studies
        }

    bounds = {b / weights[s.study_id] for s in studies for b in (low[s.study_id], float(s.most))}
    levels = [0.0, *sorted(bounds - {0.0})]
    # Between two levels each rate is linear.
    above = bisect_left(levels, total, hi=len(levels) - 1, key=lambda x: sum(filled(x).values()))
    lower, upper = filled(levels[max(0, above - 1)]), filled(levels[above])
    held, wanted = sum(lower.values()), sum(upper.values())
    part = min(1.0, max(0.0, (total - held) / (wanted - held))) if wanted > held else 1.0
    return rates | {name: low + part * (upper[name] - low) for name, low in lower.items()}


def whole_slots(
    pool: PoolSnapshot, rates: Mapping[int, float], quantum: float | None = None
) -> dict[int, int]:
    """Whole slots from rates, by turns.

    Each study gets the whole slots of its rate; those that are left over go to the studies
    furthest behind theirs. A study keeps such a slot until another one is ``quantum``
    slot-seconds further behind, so slots do not flap. Over time each study gets its rate: with n
    studies, plans every p seconds, and constant rates, no study is more than (quantum + p) *
    (1 + ln n) slot-seconds behind. A study whose rate is below one slot, since there are more
    studies than slots, waits for its turn at most twice that, divided by its rate.

    Args:
        pool: The pool.
        rates: Slots by study id, in fractions.
        quantum: Slot-seconds; larger ones mean fewer hand-overs and longer turns. By default ten
            times what a move costs any study, and a minute at least.
    """
    if quantum is None:
        quantum = max([_TURN, *(_RESTARTS * study.restart for study in needy(pool))])
    shares = {study: math.floor(rate + _WHOLE) for study, rate in rates.items()}
    left = round(sum(rates.values())) - sum(shares.values())
    waiting = [
        study for study in pool.studies if rates[study.study_id] - shares[study.study_id] > _WHOLE
    ]

    def urgency(study: StudyView) -> tuple[float, int]:
        has_one = study.slots > shares[study.study_id]
        return -study.lag - (quantum if has_one else 0.0), study.study_id

    for study in sorted(waiting, key=urgency)[:left]:
        shares[study.study_id] += 1
    return shares
