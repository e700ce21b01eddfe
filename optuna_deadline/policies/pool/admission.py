"""Whether the studies of a pool can train as much as they expect by their deadlines.

The pool is modelled as a fluid: at every moment each study has its weighted max-min fair share of
the slots until its work is done or its deadline comes. The even divider approximates this over
time, without overheads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from optuna_deadline.policies.pool.fair_share import PoolSnapshot, StudyView, fair_shares

_ENOUGH = 0.999  # of the expected slot-seconds
_WEIGHTS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class StudyProspect:
    """One study's part of the pool until its deadline.

    Attributes:
        study: The study.
        expected: Slot-seconds until its deadline.
        needed: Slot-seconds that it still wants to train; None for a study that uses all it gets.
    """

    study: StudyView
    expected: float
    needed: float | None

    @property
    def is_met(self) -> bool:
        """Whether it gets what it needs."""
        return self.needed is None or self.expected >= _ENOUGH * self.needed


@dataclass(frozen=True)
class Remedy:
    """Changes with which a study would get what it needs.

    Attributes:
        extend: Seconds by which its deadline would have to move.
        weight: The weight that it would need; None if no weight suffices.
        losers: The studies that would then no longer get what they need.
    """

    extend: float
    weight: float | None
    losers: tuple[str, ...] = ()


def prospects(pool: PoolSnapshot) -> list[StudyProspect]:
    """The prospect of each study."""
    gets = {study.study_id: 0.0 for study in pool.studies}
    for seconds, shares in _stretches(pool):
        for study_id, share in shares.items():
            gets[study_id] += seconds * share
    return [StudyProspect(s, gets[s.study_id], _needed(pool, s)) for s in pool.studies]


def remedy(pool: PoolSnapshot, study_id: int) -> Remedy:
    """The remedy for one study that is short of slots."""
    before = {p.study.name for p in prospects(pool) if p.is_met}
    for factor in _WEIGHTS:
        heavier = _changed(pool, study_id, weight=factor)
        found = prospects(heavier)
        if all(p.is_met for p in found if p.study.study_id == study_id):
            weight = next(s.weight for s in heavier.studies if s.study_id == study_id)
            losers = sorted(before - {p.study.name for p in found if p.is_met})
            return Remedy(_extension(pool, study_id), weight, tuple(losers))
    return Remedy(_extension(pool, study_id), None)


def losing_studies(pool: PoolSnapshot, newcomer: int) -> list[StudyProspect]:
    """The studies that lose what they need through the newcomer."""
    rest = replace(pool, studies=tuple(s for s in pool.studies if s.study_id != newcomer))
    before = {p.study.study_id for p in prospects(rest) if p.is_met}
    return [p for p in prospects(pool) if not p.is_met and p.study.study_id in before]


def _needed(pool: PoolSnapshot, study: StudyView) -> float | None:
    """The slot-seconds that a study needs; None if it uses every slot until its deadline."""
    if study.remaining is None:
        return None
    limit = study.most * study.time_left(pool.now)
    return None if study.remaining >= _ENOUGH * limit else study.remaining


def _stretches(pool: PoolSnapshot) -> Sequence[tuple[float, dict[int, float]]]:
    """Stretches of constant shares: seconds and shares."""
    found: list[tuple[float, dict[int, float]]] = []
    now = pool.now
    left = {
        s.study_id: w if (w := _needed(pool, s)) is not None else math.inf for s in pool.studies
    }
    while True:
        active = tuple(
            s for s in pool.studies if s.deadline > now and left[s.study_id] > 0 and s.most > 0
        )
        shares = {k: v for k, v in fair_shares(replace(pool, studies=active)).items() if v > 0}
        if not shares:
            return found
        ends = [s.deadline - now for s in active]
        done = [left[study_id] / share for study_id, share in shares.items()]
        seconds = min(*ends, *done)
        if math.isinf(seconds):
            return found
        found.append((seconds, shares))
        now += seconds
        for study_id, share in shares.items():
            left[study_id] -= seconds * share
            if left[study_id] < 1e-6:
                left[study_id] = 0.0


def _extension(pool: PoolSnapshot, study_id: int) -> float:
    """Seconds after its deadline at which its work would be done."""
    study = next(s for s in pool.studies if s.study_id == study_id)
    end = study.deadline
    # Its claim is fixed before: with more time it would not want more.
    patient = _changed(pool, study_id, deadline=math.inf)
    now, left = pool.now, study.remaining or 0.0
    for seconds, shares in _stretches(patient):
        share = shares.get(study_id, 0.0)
        if share * seconds >= left - 1e-6:
            return max(0.0, now + left / share - end) if share else 0.0
        left -= share * seconds
        now += seconds
    return max(0.0, now - end)


def _changed(
    pool: PoolSnapshot, study_id: int, *, weight: float = 1.0, deadline: float | None = None
) -> PoolSnapshot:
    """The pool with another weight or deadline of one study."""
    return replace(
        pool,
        studies=tuple(
            replace(s, weight=s.weight * weight, deadline=deadline or s.deadline)
            if s.study_id == study_id
            else s
            for s in pool.studies
        ),
    )
