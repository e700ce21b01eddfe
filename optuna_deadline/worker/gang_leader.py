"""The leader's side of gangs over several workers: slots of other workers, and the rendezvous."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from optuna_deadline.allocation.records import GangMembership, PlannedTrial, Rendezvous
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.rank.rendezvous import RankServer
from optuna_deadline.worker.devices import free_port
from optuna_deadline.worker.fork import LocalRanks
from optuna_deadline.worker.segment import Gang


class GangLeader:
    """Connects the ranks of a worker's gangs.

    Args:
        table: The allocation table.
        worker_id: The worker.
        rank_server: Accepts ranks of other hosts; None if the worker is in no gang with them.
    """

    def __init__(
        self, table: AllocationTable, worker_id: str, rank_server: RankServer | None
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._rank_server = rank_server

    def free_member_slots(self, row: PlannedTrial) -> dict[str, list[int]] | None:
        """Free slots of the other workers in a plan's line; None if too few are free."""
        found = {}
        for name, count in row.others:
            free = self._table.free_slots(name)
            if len(free) < count or self._rank_server is None:
                return None
            found[name] = free[:count]
        return found

    def open_rendezvous(
        self, gang: Gang, resume: Path | None, saved: Collection[Checkpoint]
    ) -> LocalRanks:
        """Open the rendezvous of a granted gang; returns the ranks to fork here.

        It is written to the table once the database answers, again if necessary.
        """
        grant = gang.grant
        if self._rank_server is None or not grant.others:
            return LocalRanks(0, grant.size, 0, ("127.0.0.1", free_port()))
        door = self._rank_server.endpoint
        where = Rendezvous(
            door.address, free_port(door.address), door.port, door.key,
            None if resume is None else _location_of(resume, saved),
        )  # fmt: skip
        gang.pending_writes.add(
            lambda: self._table.publish_rendezvous(self._worker_id, grant, where)
        )
        return LocalRanks(0, grant.size, 0, (where.address, where.port), door.address)

    def drop_lost_members(
        self, gangs: Collection[Gang], memberships: Collection[GangMembership]
    ) -> None:
        """End the gangs that have lost a member."""
        there = {(hand.number, hand.fence, hand.part.worker) for hand in memberships}
        for gang in gangs:
            gone = [
                part.worker
                for part in gang.grant.others
                if (gang.number, gang.grant.fence, part.worker) not in there
            ]
            for worker in gone:
                gang.drop_member(worker)
            gang.without_members = len(gone) == len(gang.grant.others)


def _location_of(resume: Path, saved: Collection[Checkpoint]) -> str:
    """The local path of the fetched checkpoint, for the ranks on other hosts."""
    return next(str(one.path) for one in saved if Path(str(one.path)).name == resume.name)
