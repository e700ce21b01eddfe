"""Studies as the agents of the market: how many slots of a pool each is lent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.pool.fair_share import PoolSnapshot, StudyView
from optuna_deadline.policies.shockwave.entitlement import HEAVIEST
from optuna_deadline.policies.shockwave.program import Array, utility


@dataclass(frozen=True)
class StudyMarket:
    """Shockwave's market with studies in the place of jobs; a divider of a pool.

    Slots go one by one to the study whose welfare gains most by another one over ``window``
    seconds: the logarithm of its progress, by its weight, and heavier by rho for a study that is
    behind its fair share. Every study that needs a slot has one, as far as there are enough; one
    whose rho is above ``overdue`` is served before the others. Our reconstruction: the paper
    knows jobs only. The studies' own policies divide what they are lent.

    Args:
        window: Seconds that the market looks ahead, at most until the study's deadline.
        exponent: Of rho in the weights.
        overdue: The rho beyond which a study is served first.

    Raises:
        DeadlineError: A parameter cannot be.
    """

    window: float = 600.0
    exponent: float = 12.0
    overdue: float = 2.0

    def __post_init__(self) -> None:
        if self.window <= 0 or self.exponent < 0 or self.overdue <= 1:
            raise DeadlineError(
                "window must be above 0, exponent not negative and overdue above 1, but got "
                f"{self!r}."
            )

    def divide(self, pool: PoolSnapshot) -> Mapping[int, int]:
        """Slots by study id."""
        shares = {study.study_id: 0 for study in pool.studies}
        needy = sorted(
            [study for study in pool.studies if study.most > 0 and pool.capacity > 0],
            key=lambda study: study.study_id,
        )
        bids = [self._bids(pool, study) for study in needy]
        firsts = sorted(
            (-overdue, -float(gains[0]), study.study_id)
            for study, (overdue, gains) in zip(needy, bids, strict=True)
        )
        for _, _, study_id in firsts[: max(0, pool.capacity)]:
            shares[study_id] += 1
        more = [gains[1:] for _, gains in bids]
        won = _highest(more, pool.capacity - len(firsts))
        for study, count in zip(needy, won, strict=True):
            shares[study.study_id] += count
        return shares

    def _bids(self, pool: PoolSnapshot, study: StudyView) -> tuple[float, Array]:
        """How overdue it is, if it is, and a bid for each slot that it could use."""
        # Beyond its deadline a slot is of no use, and gains that are all nothing share nothing.
        window = min(self.window, study.time_left(pool.now))
        rho, total = _rho(study, window)
        count = min(study.most, pool.capacity)
        slots = np.arange(count + 1)
        reached = np.minimum(1.0, (study.done + slots * window) / total)
        late = min(HEAVIEST, rho**self.exponent) if rho > 1 else 1.0
        gains = study.weight * late * np.diff(utility(reached))
        # A slot that changes hands costs a restart: it must be worth it.
        gains[: study.slots] *= WORTHWHILE
        return (rho if rho > self.overdue else 0.0), gains


def _highest(bids: Sequence[Array], count: int) -> list[int]:
    """How many of each bidder's bids are among the ``count`` highest.

    All studies' bids for all slots are two million in a pool of ten thousand slots, of which few
    are level with the last that wins: only those are put in order, the lower slots first.
    """
    sizes = [len(gains) for gains in bids]
    if count >= sum(sizes):
        return sizes
    if count <= 0:
        return [0] * len(sizes)
    gains = np.concatenate(bids)
    who = np.repeat(np.arange(len(sizes)), sizes)
    last = np.partition(gains, len(gains) - count)[len(gains) - count]
    above = gains > last
    nth = np.concatenate([np.arange(size) for size in sizes])
    level = np.flatnonzero(gains == last)
    level = level[np.lexsort((who[level], nth[level]))][: count - int(above.sum())]
    won = np.bincount(who[above], minlength=len(sizes))
    return list(map(int, won + np.bincount(who[level], minlength=len(sizes))))


def _rho(study: StudyView, window: float) -> tuple[float, float]:
    """How late the study will be, and its slot-seconds from beginning to end.

    On its fair share it would train ``total`` slot-seconds in as many; what it is behind comes on
    top. A study that cannot say what it needs is taken to need the window on all it could use.
    """
    remaining = study.remaining if study.remaining is not None else window * study.most
    total = max(study.done + remaining, 1.0)
    return 1.0 + max(0.0, study.lag) / total, total
