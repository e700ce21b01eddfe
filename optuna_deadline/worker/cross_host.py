"""The member's side of gangs over several workers: its slots and its ranks for another's trial.

The leader owns the trial; a member knows only where its ranks meet. So in any doubt the member
releases its part, which ends the segment for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from optuna_deadline.allocation.records import GangMembership, Grant, Orders
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.restore import CheckpointFetcher
from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.rendezvous import LeaderEndpoint, RankServer
from optuna_deadline.worker.fork import LocalRanks, RankForker
from optuna_deadline.worker.segment import Gang, SegmentKey, busy_slots

_logger = logging.getLogger("optuna_deadline")


class CrossHostGangs:
    """The parts that a worker gives to others' gangs, and the ranks of others in its own.

    Args:
        table: The allocation table.
        worker_id: The worker.
        forker: Forks the ranks.
        fetcher: Fetches checkpoints of others' trials to this host.
        address: The address of this host for others; None if the worker is in no gang with them.
        gangs: The gangs of this worker, by trial number and fence; parts for others are added.

    Attributes:
        rank_server: Accepts the ranks of others in its own gangs.
    """

    def __init__(
        self,
        table: AllocationTable,
        worker_id: str,
        forker: RankForker,
        fetcher: CheckpointFetcher,
        address: str | None,
        gangs: dict[SegmentKey, Gang],
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._forker = forker
        self._fetcher = fetcher
        self._address = address
        self._gangs = gangs
        self.rank_server = None if address is None else RankServer(address, self._admit_rank)
        self._accepted: dict[SegmentKey, GangMembership] = {}  # renewed, without ranks so far
        self._renewed: set[SegmentKey] = set()

    @property
    def accepted_slots(self) -> list[tuple[int, int]]:
        """Slots without ranks so far that are to be renewed, with their fences."""
        return [pair for hand in self._accepted.values() for pair in hand.part.slots]

    def apply_renewal(self, kept: Collection[tuple[int, int]]) -> None:
        """Apply the answer to a renewal: slots that were not renewed belong to others."""
        for key, hand in list(self._accepted.items()):
            if set(kept).issuperset(hand.part.slots):
                self._renewed.add(key)
            else:
                self._drop(key)

    def reconcile(self, orders: Orders, renew: Callable[[], None], *, open: bool) -> None:
        """Start the parts that the table asks for and end those that are over, if any are.

        Args:
            orders: The orders in the newest reading.
            renew: Renews all leases of the worker, before a rank is forked.
            open: Whether new parts may start.
        """
        across = any(gang.grant.others or not gang.leads for gang in self._gangs.values())
        if not (orders.in_gangs or across or self._accepted):
            return
        memberships = self._table.memberships(self._worker_id)
        led = [gang for gang in self._gangs.values() if gang.leads]
        self._forker.event_loop.call_soon(lambda: _drop_lost_members(led, memberships))
        if self._reconcile_parts(memberships, open=open):
            renew()
            self._reconcile_parts(memberships, open=open)

    def close(self) -> None:
        """Accept no more connections."""
        if self.rank_server is not None:
            self.rank_server.close()

    def _reconcile_parts(self, memberships: Collection[GangMembership], *, open: bool) -> bool:
        """Follow the table; returns whether leases must be renewed before a rank is forked."""
        mine = {(h.number, h.fence): h for h in memberships if h.part.worker == self._worker_id}
        for key, gang in self._gangs.items():
            if gang.leads:
                continue
            if key not in mine:
                gang.lose()
            elif not mine[key].active:
                gang.call_soon(gang.kill)
        for key in [key for key in self._accepted if key not in mine]:
            self._drop(key)
        for key, hand in mine.items():
            if key in self._gangs:
                continue
            if not hand.active or not open:
                self._drop(key)
                self._table.release_part(self._worker_id, *key)
                continue
            self._accepted[key] = hand
            if (
                key in self._renewed
                and self._forker.event_loop.fork_server.ready
                and self._can_start(hand)
            ):
                self._fork(key, hand)
        return any(key not in self._renewed for key in self._accepted)

    def _admit_rank(self, number: int, fence: int, index: int, link: Channel) -> bool:
        """Let a rank from another host be attached; called in a thread of its own."""
        gang = self._gangs.get((number, fence))
        if gang is None or not gang.leads:
            return False

        def attach() -> None:
            if not gang.attach_remote_rank(index, link):
                link.close()

        self._forker.event_loop.call_soon(attach)
        return True

    def _can_start(self, membership: GangMembership) -> bool:
        """Whether the ranks can start: the rendezvous is known and the checkpoint is here."""
        if membership.rendezvous is None:
            return False
        if membership.rendezvous.resume_location is None:
            return True
        for number in (membership.number, None):  # its own, else its parent's
            saved = self._table.checkpoints(number)
            location = membership.rendezvous.resume_location
            if wanted := [one for one in saved if str(one.path) == location]:
                return self._fetcher.request(membership.number, membership.fence, wanted)
        # it was replaced in between
        self._table.release_part(self._worker_id, membership.number, membership.fence)
        return False

    def _fork(self, key: SegmentKey, membership: GangMembership) -> None:
        """Fork the ranks; this worker has renewed the slots and may trust them."""
        part, where = membership.part, membership.rendezvous
        taken = busy_slots(self._gangs.values())
        if where is None or not taken.isdisjoint([slot for slot, _ in part.slots]):
            return  # a rank that lost them is about to exit
        if not self._forker.may_fork:
            return
        resume = None if where.resume_location is None else self._fetcher.result(membership.number)
        self._drop(key)
        if where.resume_location is not None and resume is None:
            _logger.warning(
                "Trial %d's checkpoint cannot be read on this host.", membership.number
            )
            self._table.release_part(self._worker_id, *key)
            return
        grant = Grant(
            membership.number, membership.trial_id, membership.fence, part.slots, part.devices
        )
        gang = self._gangs[key] = Gang(grant, 0, 0.0, call_soon=self._forker.event_loop.call_soon)
        local_ranks = LocalRanks(
            part.first_rank,
            membership.size,
            part.first_rank // part.size,
            (where.address, where.port),
            self._address,
            LeaderEndpoint(where.address, where.link_port, where.key),
        )
        self._forker.fork(gang, local_ranks, resume)

    def _drop(self, key: SegmentKey) -> None:
        self._accepted.pop(key, None)
        self._renewed.discard(key)


def _drop_lost_members(gangs: Collection[Gang], memberships: Collection[GangMembership]) -> None:
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
