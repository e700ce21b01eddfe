"""The baselines' shares in closed form: on GPUs of one kind their linear programmes have one.

Each is the programme of Gavel's policy of that name as Shockwave's repository ships it, with one
kind of GPU. Where a programme leaves shares open, spare GPUs are dealt out evenly (our choice; the
original takes whatever its solver returns).

AlloX (Le et al., EuroSys 2020) as Shockwave's repository runs it on GPUs of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.cluster.jobs import JobView, Market
from benchmarks.cluster.shares import Allocation

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MaxMinFair:
    """Gavel: ``max min_j gang_j * share_j``, that is, equal GPU-time for each job."""

    def allocate(self, market: Market, before: Allocation[None] | None) -> Allocation[None]:
        """Fill up GPU-time like water; a job that needs no more leaves the rest to the others."""
        gangs = _gangs(market.jobs)
        return _allocation(market, _pour(np.zeros(len(gangs)), gangs, market.gpus))


@dataclass(frozen=True)
class GandivaFair:
    """Gandiva-Fair as in the repository: each job gets ``GPUs / jobs`` of the time."""

    def allocate(self, market: Market, before: Allocation[None] | None) -> Allocation[None]:
        """Equal time whatever the gang: a large gang takes more GPU-time."""
        count = len(market.jobs)
        return _allocation(market, np.full(count, min(1.0, market.gpus / max(1, count))))


@dataclass(frozen=True)
class MinTotalDuration:
    """OSSP: the shares with which all jobs end at the earliest possible common instant."""

    def allocate(self, market: Market, before: Allocation[None] | None) -> Allocation[None]:
        """In proportion to the seconds left: ``min T, share_j >= left_j / T``."""
        gangs = _gangs(market.jobs)
        left = np.array([job.seconds_left for job in market.jobs])
        end = max(float(left.max(initial=0.0)), float(left @ gangs) / market.gpus)
        return _allocation(market, left / end if end > 0 else np.ones(len(left)))


@dataclass(frozen=True)
class MaxThroughput:
    """MST: ``max sum_j throughput_j * share_j`` in optimizer steps per second."""

    def allocate(self, market: Market, before: Allocation[None] | None) -> Allocation[None]:
        """A knapsack that takes fractions: the most steps per GPU first."""
        gangs = _gangs(market.jobs)
        speed = np.array([job.regime.steps / job.regime.epoch_seconds for job in market.jobs])
        shares = np.zeros(len(gangs))
        free = float(market.gpus)
        for index in np.lexsort((np.arange(len(gangs)), -speed / gangs)):
            shares[index] = min(1.0, free / gangs[index])
            free -= shares[index] * gangs[index]
        return _allocation(market, shares)


@dataclass(frozen=True)
class Alone:
    """What a job would have had of the time alone: bookkeeping of :class:`FinishTimeFair`."""

    seconds: float  #: that the work done so far would have taken on an equal part of the GPUs
    left: float  #: optimizer steps left when it was last looked at
    step_seconds: float  #: of a step on that part


@dataclass(frozen=True)
class FinishTimeFair:
    """Themis: ``min max_j rho_j``, a job's finish time by the one on an equal part of the GPUs.

    Work is counted in optimizer steps, as in that code: a batch that grows halves the steps left,
    and the half that is gone counts as done.
    """

    def allocate(
        self, market: Market, before: Allocation[Mapping[int, Alone]] | None
    ) -> Allocation[Mapping[int, Alone]]:
        """Bisect rho: ``share_j >= left_j / (rho * alone_j - age_j)`` must fit into the GPUs."""
        jobs, gangs = market.jobs, _gangs(market.jobs)
        known = before.note if before is not None else {}
        part = market.gpus / max(1, len(jobs))
        note = {job.number: _alone(job, part, known.get(job.number)) for job in jobs}
        left = np.array([job.seconds_left for job in jobs])
        age = np.array([market.now - job.arrival for job in jobs])
        alone = np.array([a.seconds + a.left * a.step_seconds for a in note.values()])

        def needed(rho: float) -> Array:
            spare = rho * alone - age
            return np.asarray(np.divide(left, spare, np.full(len(left), np.inf), where=spare > 0))

        def fits(rho: float) -> bool:
            shares = needed(rho)
            return bool((shares <= 1.0).all() and shares @ gangs <= market.gpus)

        low, high = 0.0, 1.0
        while not fits(high):
            low, high = high, 2 * high
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        shares = _pour(needed(high), gangs, market.gpus)
        return Allocation(_by_number(jobs, shares), note)


def _alone(job: JobView, part: float, before: Alone | None) -> Alone:
    steps, seconds = job.left * job.regime.steps, 0.0
    if before is not None:
        seconds = before.seconds + (before.left - steps) * before.step_seconds
    step_seconds = job.regime.epoch_seconds / job.regime.steps
    return Alone(seconds, steps, step_seconds / min(1.0, part / job.gang))


def _pour(shares: Array, gangs: Array, gpus: int) -> Array:
    """Raise shares by equal GPU-time until the GPUs are full or each job runs all the time."""
    time, room = shares * gangs, gangs * (1.0 - shares)
    spare = gpus - float(time.sum())
    for index in np.argsort(room, kind="stable"):
        if spare <= 0:
            break
        open_ones = float((room >= room[index]).sum())
        level = min(float(room[index]), spare / open_ones)
        raised = room >= room[index]
        time = time + np.where(raised, level, 0.0)
        room = np.where(raised, room - level, 0.0)
        spare -= level * open_ones
    return np.asarray(np.minimum(1.0, time / gangs))


def _gangs(jobs: Sequence[JobView]) -> Array:
    return np.array([float(job.gang) for job in jobs])


def _by_number(jobs: Sequence[JobView], shares: Array) -> dict[int, float]:
    return {job.number: float(share) for job, share in zip(jobs, shares, strict=True)}


def _allocation(market: Market, shares: Array) -> Allocation[None]:
    return Allocation(_by_number(market.jobs, shares), None)


@dataclass(frozen=True)
class AlloX:
    """The least average completion time, among those that have waited longest.

    On GPUs of one kind the matching of jobs with places in the GPUs' queues has a closed form: the
    shortest first. A single-GPU job keeps its GPU to its end; AlloX knows no gangs, so a gang of
    ``g`` is given the GPU that it is matched with as ``1 / g`` of the time.

    Args:
        alpha: Which part of the waiting jobs is looked at, the oldest first.
    """

    alpha: float = 0.2

    def allocate(self, market: Market, before: Allocation[None] | None) -> Allocation[None]:
        """A job that has a GPU keeps it; the others are matched again."""
        old = before.shares if before is not None else {}
        shares = {job.number: old.get(job.number, 0.0) for job in market.jobs}
        waiting = [job for job in market.jobs if shares[job.number] < 1.0]
        free = market.gpus - (len(market.jobs) - len(waiting))
        waiting.sort(key=lambda job: (job.arrival, job.number))
        looked_at = waiting[: max(int(self.alpha * len(waiting)), free)]
        looked_at.sort(key=lambda job: (job.seconds_left, job.number))
        for job in looked_at[:free]:
            shares[job.number] = 1.0 / job.gang
        return Allocation(shares, None)
