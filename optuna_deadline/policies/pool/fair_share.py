"""Fair shares of a pool's slots among its studies. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

#: Shares this close to a whole number count as whole: they are floats.
_WHOLE = 1e-9


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
        entitled: Slot-seconds of :func:`fair_shares` since it joined.
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
    """Anything with ``divide``: a pure, deterministic function of the snapshot."""

    def divide(self, pool: PoolSnapshot) -> Mapping[int, int]:
        """Slots by study id: at most ``most`` each, at most the capacity together."""


@dataclass(frozen=True)
class EvenDivider:
    """Weighted max-min fair shares in whole slots.

    Each study gets the whole slots of its fair share; those that are left over go to the studies
    furthest behind theirs. A study keeps such a slot until another one is ``quantum``
    slot-seconds further behind, so slots do not flap. Over time each study gets its share: with n
    studies, plans every p seconds, and constant demands, no study is more than (quantum + p) *
    (1 + ln n) slot-seconds behind. A study whose share is below one slot, since there are more
    studies than slots, waits for its turn at most twice that, divided by its share.

    Args:
        quantum: Slot-seconds; larger ones mean fewer hand-overs and longer turns.
    """

    quantum: float = 60.0

    def divide(self, pool: PoolSnapshot) -> Mapping[int, int]:
        """The fair shares, rounded to whole slots by turns."""
        fair = fair_shares(pool)
        shares = {study: math.floor(share + _WHOLE) for study, share in fair.items()}
        left = round(sum(fair.values())) - sum(shares.values())
        waiting = [
            study
            for study in pool.studies
            if fair[study.study_id] - shares[study.study_id] > _WHOLE
        ]

        def urgency(study: StudyView) -> tuple[float, int]:
            has_one = study.slots > shares[study.study_id]
            return -study.lag - (self.quantum if has_one else 0.0), study.study_id

        for study in sorted(waiting, key=urgency)[:left]:
            shares[study.study_id] += 1
        return shares


def fair_shares(pool: PoolSnapshot) -> dict[int, float]:
    """Weighted max-min fair shares in fractions of slots, by study id.

    Slots that a study cannot use go to the others. If there are as many slots as studies that need
    one, each of them gets at least one.
    """
    needy = [study for study in pool.studies if study.most > 0]
    least = 1.0 if len(needy) <= pool.capacity else 0.0
    total = float(min(pool.capacity, sum(study.most for study in needy)))
    shares = {study.study_id: 0.0 for study in pool.studies}
    shares.update(_fill(needy, least, total))
    return shares


def _fill(studies: list[StudyView], least: float, total: float) -> dict[int, float]:
    """Raise one level for all studies, a share being level * weight between ``least`` and most."""

    def filled(level: float) -> dict[int, float]:
        return {s.study_id: min(max(level * s.weight, least), float(s.most)) for s in studies}

    below, above = 0.0, 0.0
    for level in sorted({bound / s.weight for s in studies for bound in (least, float(s.most))}):
        below, above = above, level
        if sum(filled(level).values()) >= total:
            break
    low, high = filled(below), filled(above)
    held, wanted = sum(low.values()), sum(high.values())
    part = (total - held) / (wanted - held) if wanted > held else 1.0
    return {study: low[study] + part * (high[study] - low[study]) for study in low}
