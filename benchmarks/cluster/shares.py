"""Gavel's rounds: an allocation says what part of the time a job should run, rounds follow it.

Read in the code of Gavel (Narayanan et al., OSDI 2020) as Shockwave's repository ships it: a new
allocation is made when jobs came, went or changed their batch sizes and 1000 s have passed since
the last; in each round the jobs are served by ``share / fraction of time received since``. A job
that came after the allocation was made waits for the next one, and what is kept free for it
meanwhile is idle: so it is in that code, and the published figures cannot be had without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from benchmarks.cluster.jobs import JobView, Market, Round, fit

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
