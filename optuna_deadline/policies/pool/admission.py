"""Whether the studies of a pool can train as much as they expect by their deadlines.

The pool is modelled as a fluid: at every moment each study has its rate of the slots until its
work is done or its deadline comes. The pool approximates this over time, without overheads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from optuna_deadline.policies.pool.fair_share import Divider, PoolSnapshot, StudyView

_ENOUGH = 0.999  # of the expected slot-seconds
_LONGEST_EXTENSION = 1e8  # seconds
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


def prospects(pool: PoolSnapshot, divider: Divider) -> list[StudyProspect]:
    """The prospect of each study."""
    gets = {study.study_id: 0.0 for study in pool.studies}
    for seconds, rates in _stretches(pool, divider):
        for study_id, rate in rates.items():
            gets[study_id] += seconds * rate
    return [StudyProspect(s, gets[s.study_id], _needed(pool, s)) for s in pool.studies]


def remedy(pool: PoolSnapshot, study_id: int, divider: Divider) -> Remedy:
    """The remedy for one study that is short of slots."""
    before = {p.study.name for p in prospects(pool, divider) if p.is_met}
    for factor in _WEIGHTS:
        heavier = _changed(pool, study_id, weight=factor)
        found = prospects(heavier, divider)
        if all(p.is_met for p in found if p.study.study_id == study_id):
            weight = next(s.weight for s in heavier.studies if s.study_id == study_id)
            losers = sorted(before - {p.study.name for p in found if p.is_met})
            return Remedy(_extension(pool, study_id, divider), weight, tuple(losers))
    return Remedy(_extension(pool, study_id, divider), None)


def losing_studies(pool: PoolSnapshot, newcomer: int, divider: Divider) -> list[StudyProspect]:
    """The studies that lose what they need through the newcomer."""
    rest = replace(pool, studies=tuple(s for s in pool.studies if s.study_id != newcomer))
    before = {p.study.study_id for p in prospects(rest, divider) if p.is_met}
    return [p for p in prospects(pool, divider) if not p.is_met and p.study.study_id in before]


def _needed(pool: PoolSnapshot, study: StudyView) -> float | None:
    """The slot-seconds that a study needs; None if it uses every slot until its deadline."""
    if study.remaining is None:
        return None
    limit = study.most * study.time_left(pool.now)
    return None if study.remaining >= _ENOUGH * limit else study.remaining


def _stretches(pool: PoolSnapshot, divider: Divider) -> Iterator[tuple[float, dict[int, float]]]:
    """Stretches of constant rates: seconds and rates."""
    now = pool.now
    studies = {study.study_id: study for study in pool.studies}
    left = {
        name: math.inf if (needed := _needed(pool, study)) is None else needed
        for name, study in studies.items()
    }
    while True:
        active = [
            s for s in studies.values() if s.deadline > now and left[s.study_id] > 0 and s.most > 0
        ]
        at = replace(pool, now=now, studies=tuple(active))
        rates = {name: rate for name, rate in divider.rates(at).items() if rate > 0}
        ends = [s.deadline - now for s in active]
        done = [left[name] / rate for name, rate in rates.items()]
        seconds = min([*ends, *done], default=math.inf)
        if not rates or math.isinf(seconds):
            return
        yield seconds, rates
        now += seconds
        for name, rate in rates.items():
            had, study = seconds * rate, studies[name]
            left[name] = 0.0 if left[name] - had < 1e-6 else left[name] - had
            work = None if study.work is None else max(0.0, study.work - had)
            studies[name] = replace(study, done=study.done + had, work=work)


def _extension(pool: PoolSnapshot, study_id: int, divider: Divider) -> float:
    """Seconds by which its deadline has to move until its work is done by it.

    Its claim is fixed before: with more time it would not want more.
    """
    study = next(s for s in pool.studies if s.study_id == study_id)

    def is_enough(seconds: float) -> bool:
        later = _changed(pool, study_id, deadline=study.deadline + seconds)
        return next(
            p.expected >= _ENOUGH * (study.remaining or 0.0)
            for p in prospects(later, divider)
            if p.study.study_id == study_id
        )

    below, enough = 0.0, 1.0
    while not is_enough(enough) and enough < _LONGEST_EXTENSION:
        below, enough = enough, 2 * enough
    while enough - below > max(0.5, 0.001 * enough):
        middle = (below + enough) / 2
        below, enough = (below, middle) if is_enough(middle) else (middle, enough)
    return enough


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
