"""Shockwave's market on one study: its trials are the jobs.

Our reconstruction throughout: the paper shares a cluster among jobs that will all be trained to
their ends, and prunes none. So this policy suits a study whose trials all matter (a sweep, an
ensemble); one that looks for a single best model does better with a policy that gives trials up.

Studies as the agents of the market: how many slots of a pool each is lent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.api import Order, Pause, Plan, Run, Snapshot, TrialView
from optuna_deadline.policies.base import Resources, alive
from optuna_deadline.policies.gang_sizes import growth_pays, uniform
from optuna_deadline.policies.pool.fair_share import PoolSnapshot, StudyView
from optuna_deadline.policies.shockwave.accounting import HEAVIEST
from optuna_deadline.policies.shockwave.program import Array, slope, utility

#: Steps assumed for a whole training until a trial reports its length.
_UNKNOWN = 100

#: Gangs grow only when nothing has changed for so many restarts.
_REST = 5.0


@dataclass(frozen=True)
class ShockwaveStudy(Resources):
    """Equal trials buy slots; log of progress per second of work; new trials while they can end.

    A slot goes to the trial whose logarithm of progress gains most in the next second, so the
    young come first and none is left behind. A running trial continues unless another one gains
    twice as much. New trials start on free slots as long as a whole training fits before the
    deadline; from then on free slots make gangs larger where S(k) pays.

    Args:
        patience: So many times as much must a waiting trial gain to take a running one's slot.
    """

    patience: float = 2.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """One plan for the whole study."""
        last, pace = self.last_step(snapshot.trials), _pace(snapshot)
        trials = sorted(alive(snapshot), key=lambda trial: self._bid(trial, last, pace))
        chosen, waiting = trials[: snapshot.capacity], trials[snapshot.capacity :]
        orders: dict[int, Order] = {
            trial.number: Pause("waits: other trials gain more from a slot") for trial in waiting
        }
        free = snapshot.capacity - len(chosen)
        known = last is not None and any(trial.step_seconds for trial in snapshot.trials)
        whole = snapshot.overhead.startup + (last or 0) * pace if known else 0.0
        newcomers = self.trials_left_to_open(snapshot)
        gate_open = snapshot.time_left > whole and newcomers != 0
        chosen.sort(key=lambda trial: trial.number)
        sizes = [1] * len(chosen) if gate_open else _grow(snapshot, chosen, free)
        for trial, slots in zip(chosen, sizes, strict=True):
            orders[trial.number] = Run(slots, "its share of the market")
        start = (free if newcomers is None else min(free, newcomers)) if gate_open else 0
        return Plan(
            orders=orders,
            start=start,
            start_reason="a free slot, and enough time for a whole training",
            gate_open=gate_open,
        )

    def _bid(self, trial: TrialView, last: int | None, pace: float) -> tuple[float, int]:
        """The gain of a step by its seconds, negative so that the greatest comes first."""
        whole = last or max(_UNKNOWN, 2 * trial.step)
        gain = slope(trial.step / whole) / whole / (trial.step_seconds or pace)
        return -gain * (self.patience if trial.running else 1.0), trial.number


def _pace(snapshot: Snapshot) -> float:
    """Seconds of a step on one slot, in the middle of the trials."""
    return median([t.step_seconds for t in snapshot.trials if t.step_seconds] or [1.0])


def _grow(snapshot: Snapshot, chosen: list[TrialView], free: int) -> list[int]:
    """Gangs: free slots are dealt out size by size, to those first that are gangs already."""
    useful = snapshot.speedup.useful(min(snapshot.capacity, snapshot.largest_gang))
    turns = sorted(range(len(chosen)), key=lambda index: -chosen[index].slots)
    scores = [chosen[index].last_score for index in turns]
    dealt = dict(zip(turns, uniform(scores, useful, len(chosen) + free), strict=True))
    lull = _REST * snapshot.overhead.total
    rests = any(trial.running and snapshot.now - trial.changed < lull for trial in chosen)
    return [
        min(size, trial.slots or 1) if rests else _keep(snapshot, trial, size)
        for size, trial in ((dealt[index], trial) for index, trial in enumerate(chosen))
    ]


def _keep(snapshot: Snapshot, trial: TrialView, size: int) -> int:
    """The size that a trial has, where growing would not gain what the restart costs."""
    if 0 < trial.slots < size and not growth_pays(snapshot, trial.slots, size):
        return trial.slots
    return size


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
    owner = np.repeat(np.arange(len(sizes)), sizes)
    last = np.partition(gains, len(gains) - count)[len(gains) - count]
    above = gains > last
    nth = np.concatenate([np.arange(size) for size in sizes])
    level = np.flatnonzero(gains == last)
    level = level[np.lexsort((owner[level], nth[level]))][: count - int(above.sum())]
    won = np.bincount(owner[above], minlength=len(sizes))
    return list(map(int, won + np.bincount(owner[level], minlength=len(sizes))))


def _rho(study: StudyView, window: float) -> tuple[float, float]:
    """How late the study will be, and its slot-seconds from beginning to end.

    On its fair share it would train ``total`` slot-seconds in as many; what it is behind comes on
    top. A study that cannot say what it needs is taken to need the window on all it could use.
    """
    remaining = study.remaining if study.remaining is not None else window * study.most
    total = max(study.done + remaining, 1.0)
    return 1.0 + max(0.0, study.lag) / total, total
