"""The market of a pool's studies: each has a purse, and spends it evenly over its own time. Pure.

The value of a search grows about with the logarithm of its slot-seconds, so what counts is the
total. In a Fisher market with purses in proportion to the weights, each study maximises such a
value by spending its purse evenly over its time in the pool. If the pool is about equally full all
the time, the totals are then in proportion to the weights. Equal shares give totals in proportion
to the studies' times instead. Shockwave (NSDI'23) has such a market for jobs; that studies are its
agents, and the closed form, are our reconstruction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna_deadline.policies.pool.fair_share import (
    EvenDivider,
    PoolSnapshot,
    StudyView,
    fill,
    needy,
)

_SAFETY = 1.03  # of a forecast of work
_LONGEST = 1e9  # seconds; a purse that is spent lasts so long


@dataclass(frozen=True)
class PurseDivider:
    """Weighted max-min rates by weight / time, between a least rate and what can be used.

    - The time of a search ends at its deadline, that of work at its fair finish if that is sooner.
      A deadline that is moved adds nothing to a purse: what is left of it lasts for longer.
    - Work that has to be done has the slots that it needs by its deadline, the earliest deadline
      first.
    - No study has less than ``floor`` of its even share of the other slots, and none has less
      than that share while the size of its work is not known.

    Args:
        floor: The part of its even share that each study has at least.
    """

    floor: float = 0.5

    def rates(self, pool: PoolSnapshot) -> dict[int, float]:
        """Slots by study id, in fractions."""
        studies, even = needy(pool), EvenDivider().rates(pool)
        due = _due(pool, studies)
        rest = max(0.0, 1 - sum(due.values()) / max(1, pool.capacity))
        low = {}
        for study in studies:
            floor = 1.0 if study.work == 0 else self.floor  # until its work is known
            least = max(due.get(study.study_id, 0.0), floor * rest * even[study.study_id])
            low[study.study_id] = min(float(study.most), least)
        times = purse_times(pool, even)
        return fill(pool, low, {s.study_id: s.weight / times[s.study_id] for s in studies})


def purse_times(pool: PoolSnapshot, even: Mapping[int, float] | None = None) -> dict[int, float]:
    """By study, the seconds for which its whole purse would last as it is spent now.

    Args:
        pool: The pool.
        even: Its even shares, if they are known.
    """
    even = EvenDivider().rates(pool) if even is None else even
    return {study.study_id: _purse_time(study, even[study.study_id]) for study in pool.studies}


def _purse_time(study: StudyView, even: float) -> float:
    if study.work:
        fair = max(study.span, (study.done + study.work) / max(0.1, even))
        time = min(study.deadline - study.joined, fair)
    else:
        left = 1 - study.spent
        time = (study.deadline - study.counted) / left if left > 0 else _LONGEST
    return min(max(1.0, time), _LONGEST)


def _due(pool: PoolSnapshot, studies: Sequence[StudyView]) -> dict[int, float]:
    """Slots that work needs to be done by its deadline, the earliest deadline first.

    Trials train in waves: with few waves left, a fraction of a slot is of no use.
    """
    due: dict[int, float] = {}
    free = float(pool.capacity)
    for study in sorted(studies, key=lambda s: (s.deadline, s.study_id)):
        left = study.deadline - pool.now
        if not study.work or math.isinf(left):
            continue
        need = _SAFETY * study.work / max(1.0, left)
        waves = math.floor(left / max(1.0, _SAFETY * study.span + study.restart))
        if waves < 2:
            need = float(study.most)
        elif waves < 4:
            need = max(need, math.ceil(study.most / waves))
        due[study.study_id] = min(need, float(study.most), free)
        free -= due[study.study_id]
    return due
