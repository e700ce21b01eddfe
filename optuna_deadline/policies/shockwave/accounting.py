"""Gavel's rounds: an allocation says what part of the time a job should run, rounds follow it.

Read in the code of Gavel (Narayanan et al., OSDI 2020) as Shockwave's repository ships it: a new
allocation is made when jobs came, went or changed their batch sizes and 1000 s have passed since
the last; in each round the jobs are served by ``share / fraction of time received since``. A job
that came after the allocation was made waits for the next one, and what is kept free for it
meanwhile is idle: so it is in that code, and the published figures cannot be had without it.

What a job is due: its fair finish time, and how much a job that is late weighs.

Read in Shockwave's code: whenever jobs come or go, a job's finish on an equal part of the GPUs is
estimated anew; what it is due is the mean of these estimates over the rounds in which each stood,
with a tenth of the latest. Our reconstruction: rho compares times since the job's arrival, as the
definition of finish-time fairness has it, where the code divides instants since the cluster's
beginning; there a job that comes late can be starved for long before its ratio moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from optuna_deadline.policies.shockwave.forecast import (
    JobView,
    Market,
    Round,
    fit,
    seconds_done,
    seconds_left,
)

Note = TypeVar("Note")
_Kept = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Allocation(Generic[Note]):
    """Parts of the time, and what the allocator wants to be told next time."""

    shares: Mapping[int, float]
    note: Note


class Allocator(Protocol[Note]):
    """Says what part of the time each job should run."""

    def allocate(self, market: Market, before: Allocation[Note] | None) -> Allocation[Note]:
        """A share between 0 and 1 for every job of the market."""


@dataclass(frozen=True)
class ShareLedger(Generic[Note]):
    """What was allocated, since when, and what each job had received by then."""

    since: float
    members: _Kept
    allocation: Allocation[Note]
    provisional: bool = False  #: the very first one, usually made of one job, delays no job
    received: Mapping[int, float] = field(default_factory=dict)
    deficits: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Shares(Generic[Note]):
    """Runs an allocator's shares in rounds.

    Args:
        allocator: Says the shares.
        hold: Seconds for which an allocation stands at least.
    """

    allocator: Allocator[Note]
    hold: float = 1000.0

    def schedule(
        self, market: Market, memory: ShareLedger[Note] | None
    ) -> Round[ShareLedger[Note]]:
        """Serve the jobs by how far they are behind their shares."""
        ledger = memory
        members = frozenset((job.number, job.current) for job in market.jobs)
        if ledger is None:
            first = self.allocator.allocate(market, None)
            ledger = ShareLedger(market.now, members, first, provisional=True)
        elif members != ledger.members and (
            ledger.provisional
            or market.now - ledger.since >= self.hold
            or not any(job.number in ledger.allocation.shares for job in market.jobs)
        ):
            ledger = self._renew(market, members, ledger)
        shares, received, deficits = ledger.allocation.shares, ledger.received, ledger.deficits
        head_start = market.round_seconds / 2  # so that no job has received 0

        def urgency(job: JobView) -> tuple[float, float, float]:
            share = shares.get(job.number, 0.0)
            since = job.received - received.get(job.number, 0.0) + head_start
            return share / since, deficits.get(job.number, 0.0), share

        ranked = sorted(market.jobs, key=lambda job: (job.arrival, job.number))
        ranked.sort(key=urgency, reverse=True)
        chosen = fit(market.gpus, ranked)
        return Round(tuple(job.number for job in chosen if job.number in shares), ledger)

    def _renew(self, market: Market, members: _Kept, old: ShareLedger[Note]) -> ShareLedger[Note]:
        elapsed = market.now - old.since
        deficits = {}
        for job in market.jobs:
            due = old.allocation.shares.get(job.number, 0.0) * elapsed
            got = job.received - old.received.get(job.number, 0.0)
            deficits[job.number] = old.deficits.get(job.number, 0.0) + due - got
        return ShareLedger(
            since=market.now,
            members=members,
            allocation=self.allocator.allocate(market, old.allocation),
            received={job.number: job.received for job in market.jobs},
            deficits=deficits,
        )


#: Of the mean of all estimates; the rest is the latest one's.
_MOMENTUM = 0.9

#: The exponent of rho for a job that has less than a round to go: it is let out.
_LAST_ROUND = 100.0

#: Upper bound of a weight; larger ones only lose precision.
HEAVIEST = 1e6


@dataclass(frozen=True)
class Due:
    """Estimates of one job's fair finish time, in seconds after its arrival."""

    latest: float
    since: int  #: the round since which the latest stands
    total: float = 0.0  #: of the earlier ones, times the rounds in which they stood
    rounds: int = 0

    def at(self, now: int) -> float:
        """The fair finish time as it is known in a round."""
        rounds = self.rounds + now - self.since
        total = self.total + self.latest * (now - self.since)
        mean = total / rounds if rounds > 0 else self.latest
        return _MOMENTUM * mean + (1 - _MOMENTUM) * self.latest

    def revised(self, latest: float, now: int) -> Due:
        """With a new estimate."""
        stood = now - self.since
        return Due(latest, now, self.total + self.latest * stood, self.rounds + stood)


def equal_part(market: Market) -> float:
    """The share of the time that each job could train if the GPUs were divided evenly."""
    return min(1.0, market.gpus / max(1, len(market.jobs)))


def revise(market: Market, before: Mapping[int, Due]) -> dict[int, Due]:
    """The estimates of all jobs after arrivals or departures."""
    part = equal_part(market)
    dues = {}
    for job in market.jobs:
        latest = (seconds_done(job) + seconds_left(job)) / part
        old = before.get(job.number)
        dues[job.number] = (
            Due(latest, market.round) if old is None else old.revised(latest, market.round)
        )
    return dues


def rho(market: Market, job: JobView, due: Due) -> float:
    """Finish-time fairness to be expected: above 1 a job ends later than it is due."""
    expected = market.now - job.arrival + seconds_left(job) / equal_part(market)
    return expected / max(1e-9, due.at(market.round))


def weight(market: Market, job: JobView, due: Due, exponent: float) -> float:
    """The weight of a job's progress."""
    nearly = seconds_left(job) < market.round_seconds
    return weight_of(rho(market, job, due), nearly, exponent)


def weight_of(late: float, nearly: bool, exponent: float) -> float:
    """``rho ** exponent`` for a job that is late, else 1; more for one that is nearly done."""
    if late <= 1.0:
        return 1.0
    return float(min(HEAVIEST, late ** (_LAST_ROUND if nearly else exponent)))
