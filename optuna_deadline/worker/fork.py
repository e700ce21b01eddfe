"""Starts a segment: forks its ranks and gives them their slots and their rendezvous."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.checkpoints.restore import CheckpointFolders
from optuna_deadline.rank.channel import channel_pair
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.process import LocalRank, RankSpec
from optuna_deadline.rank.rendezvous import LeaderEndpoint
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang


@dataclass(frozen=True)
class RankSettings:
    """Settings of all ranks of a worker."""

    folders: CheckpointFolders
    direction: str
    grace: float


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


def fork_ranks(
    fork_server: ForkServer,
    gang: Gang,
    local_ranks: LocalRanks,
    resume: Path | None,
    settings: RankSettings,
    trusted_until: float,
) -> None:
    """Fork a worker's ranks of a granted segment; they end by themselves at ``trusted_until``.

    Those of other hosts are expected.
    """
    grant = gang.grant
    for spec in _specs(gang, local_ranks, resume, settings, trusted_until):
        _fork(fork_server, gang, spec)
    for index in range(len(grant.slots), grant.size):
        gang.add_rank(Rank(index, None, forked_fence=grant.fence, orphaned=True, remote=True))
    crashpoint("launch.forked")


def _specs(
    gang: Gang,
    local_ranks: LocalRanks,
    resume: Path | None,
    settings: RankSettings,
    trusted_until: float,
) -> Iterable[RankSpec]:
    grant = gang.grant
    for local in range(len(grant.slots)):
        yield RankSpec(
            number=grant.number,
            rank=local_ranks.first_rank + local,
            world_size=local_ranks.world_size,
            rendezvous=local_ranks.rendezvous,
            local=LocalRank(local, len(grant.slots), local_ranks.node_rank, local_ranks.address),
            fence=grant.fence,
            folder=str(settings.folders.local_folder(grant.number)),
            store=settings.folders.remote_url(grant.number),
            resume=str(resume) if resume else None,
            devices=grant.devices,
            direction=settings.direction,
            trusted_until=trusted_until,
            grace=settings.grace,
            leader_endpoint=local_ranks.leader_endpoint,
        )


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
