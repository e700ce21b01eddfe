"""Starts a segment: forks its ranks and gives them their slots and their rendezvous."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.restore import CheckpointFolders
from optuna_deadline.rank.channel import channel_pair
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.process import LocalRank, RankSpec
from optuna_deadline.rank.rendezvous import LeaderEndpoint
from optuna_deadline.worker.event_loop import EventLoop
from optuna_deadline.worker.lease_clock import LeaseClock
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang


@dataclass(frozen=True)
class LocalRanks:
    """The ranks of a segment that one worker forks."""

    first_rank: int  #: rank
    world_size: int  #: the world size, on all hosts together
    node_rank: int  #: the index of this host in the gang
    rendezvous: tuple[str, int]  #: address and port of the rendezvous
    address: str | None = None  #: interface of this host; None if the gang is on one host
    #: to the leader, if that is another worker
    leader_endpoint: LeaderEndpoint | None = None


@dataclass(frozen=True)
class RankForker:
    """Lets the event loop's thread fork the ranks of a worker's segments.

    Args:
        event_loop: Has the fork server.
        lease_clock: Until when the leases are trusted.
        table: The allocation table.
        folders: Where checkpoints are.
        direction: The study's.
    """

    event_loop: EventLoop
    lease_clock: LeaseClock
    table: AllocationTable
    folders: CheckpointFolders
    direction: str

    @property
    def may_fork(self) -> bool:
        """Whether the leases are still trusted: otherwise others may have the slots."""
        return time.monotonic() < self.lease_clock.trusted_until

    def fork(self, gang: Gang, local_ranks: LocalRanks, resume: Path | None) -> None:
        """Fork a worker's ranks of a granted segment, and expect those of other hosts.

        They end by themselves once the leases, as they are trusted now, have ended.
        """
        specs = list(self._specs(gang.grant, local_ranks, resume))
        self.event_loop.call_soon(lambda: _fork_all(self.event_loop.fork_server, gang, specs))

    def _specs(
        self, grant: Grant, local_ranks: LocalRanks, resume: Path | None
    ) -> Iterable[RankSpec]:
        for local in range(len(grant.slots)):
            yield RankSpec(
                number=grant.number,
                rank=local_ranks.first_rank + local,
                world_size=local_ranks.world_size,
                rendezvous=local_ranks.rendezvous,
                local=LocalRank(
                    local, len(grant.slots), local_ranks.node_rank, local_ranks.address
                ),
                fence=grant.fence,
                folder=str(self.folders.local_folder(grant.number)),
                store=self.folders.remote_url(grant.number),
                resume=str(resume) if resume else None,
                devices=grant.devices,
                direction=self.direction,
                trusted_until=self.lease_clock.trusted_until,
                grace=self.table.grace,
                leader_endpoint=local_ranks.leader_endpoint,
            )


def _fork_all(fork_server: ForkServer, gang: Gang, specs: Iterable[RankSpec]) -> None:
    grant = gang.grant
    for spec in specs:
        _fork(fork_server, gang, spec)
    for index in range(len(grant.slots), grant.size):
        gang.add_rank(Rank(index, None, forked_fence=grant.fence, orphaned=True, remote=True))
    crashpoint("launch.forked")


def _fork(fork_server: ForkServer, gang: Gang, spec: RankSpec) -> None:
    number, fence, index = gang.number, gang.grant.fence, spec.rank
    try:
        link = fork_server.fork((number, fence, index), spec)
    except OSError:  # the fork server has just died: the segment ends like any other death
        ours, theirs = channel_pair()
        theirs.close()
        gang.add_rank(Rank(index, ours, forked_fence=fence, orphaned=True))
    else:
        gang.add_rank(Rank(index, link, forked_fence=fence, requested_at=time.monotonic()))
