"""Gangs that cross workers, from the leader's side: slots of others, and where the ranks meet."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from optuna_deadline.allocation.records import Desired, Hand, Meeting
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.rank.rendezvous import Reception
from optuna_deadline.worker.devices import free_port
from optuna_deadline.worker.fork import Crew
from optuna_deadline.worker.segment import Gang, Rank


class Meetings:
    """Brings the ranks of a worker's gangs together.

    Args:
        table: The allocation table.
        me: The worker.
        reception: Where ranks on other hosts come; None where the worker is in no gang with them.
    """

    def __init__(self, table: AllocationStore, me: str, reception: Reception | None) -> None:
        self._table = table
        self._me = me
        self._reception = reception

    def slots_of(self, line: Desired) -> dict[str, list[int]] | None:
        """Free slots of the further workers that the plan names; None where some are lacking."""
        found = {}
        for name, count in line.others:
            free = self._table.free_slots(name)
            if len(free) < count or self._reception is None:
                return None
            found[name] = free[:count]
        return found

    def convene(self, gang: Gang, resume: Path | None, saved: Collection[Checkpoint]) -> Crew:
        """Let the ranks of a granted gang find each other; returns those that are forked here.

        It is written down where they meet as soon as the database answers, and again if need be.
        """
        grant = gang.grant
        if self._reception is None or not grant.others:
            return Crew(0, grant.size, 0, ("127.0.0.1", free_port()))
        door = self._reception.door
        where = Meeting(
            door.address, free_port(door.address), door.port, door.key,
            None if resume is None else _name(resume, saved),
        )  # fmt: skip
        for index in range(len(grant.slots), grant.size):
            gang.enlist_far(Rank(index, None, born=grant.fence, orphaned=True, far=True))
        gang.backlog.add(lambda: self._table.meet(self._me, grant, where))
        return Crew(0, grant.size, 0, (where.address, where.port), door.address)

    def miss_who_is_gone(self, gangs: Mapping[int, Gang], hands: Collection[Hand]) -> None:
        """End the gangs that have lost a part."""
        there = {(hand.number, hand.fence, hand.part.worker) for hand in hands}
        for gang in gangs.values():
            gone = [
                part.worker
                for part in gang.grant.others
                if (gang.number, gang.grant.fence, part.worker) not in there
            ]
            for worker in gone:
                gang.miss(worker)
            gang.parted = len(gone) == len(gang.grant.others)


def _name(resume: Path, saved: Collection[Checkpoint]) -> str:
    """The location of the checkpoint that was brought here, for those who bring it elsewhere."""
    return next(str(one.path) for one in saved if Path(str(one.path)).name == resume.name)
