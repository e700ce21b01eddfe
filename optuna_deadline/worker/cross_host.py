"""The member's side of gangs over several workers: its slots and its ranks for another's trial.

The leader owns the trial; a member knows only where its ranks meet. So in any doubt the member
releases its part, which ends the segment for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from optuna_deadline.allocation.records import GangMembership, Grant, Orders
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.restore import CheckpointFetcher
from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.messages import Leaves
from optuna_deadline.rank.rendezvous import LeaderEndpoint, RankServer
from optuna_deadline.worker.fork import LocalRanks, RankForker
from optuna_deadline.worker.segment import Gang, busy_slots

_logger = logging.getLogger("optuna_deadline")

Key = tuple[int, int]  #: number and fence


class CrossHostGangs:
    """The parts that a worker gives to others' gangs, and the ranks of others in its own.

    Args:
        table: The allocation table.
        worker_id: The worker.
        forker: Forks the ranks.
        fetcher: Fetches checkpoints of others' trials to this host.
        address: The address of this host for others; None if the worker is in no gang with them.
        led_gangs: The gangs that this worker leads, by trial number.

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
        led_gangs: Mapping[int, Gang],
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._forker = forker
        self._fetcher = fetcher
        self._address = address
        self._led_gangs = led_gangs
        self.rank_server = None if address is None else RankServer(address, self._admit_rank)
        self._accepted: dict[Key, GangMembership] = {}  # renewed, without ranks so far
        self._renewed: set[Key] = set()
        self._gangs: dict[Key, Gang] = {}
        self._announced: set[Key] = set()

    @property
    def gangs(self) -> list[Gang]:
        """Gangs with ranks of this worker."""
        return list(self._gangs.values())

    @property
    def busy(self) -> bool:
        """Whether this worker holds any slot for others."""
        return bool(self._gangs or self._accepted)

    @property
    def held_slots(self) -> list[tuple[int, int]]:
        """Slots to renew, with their fences."""
        running = [gang.grant.slots for gang in self._gangs.values() if not gang.lost]
        waiting = [hand.part.slots for hand in self._accepted.values()]
        return [pair for pairs in (*running, *waiting) for pair in pairs]

    def apply_renewal(self, kept: Collection[tuple[int, int]]) -> None:
        """Apply the answer to a renewal: slots that were not renewed belong to others."""
        for gang in self._gangs.values():
            if not gang.lost and not set(kept).issuperset(gang.grant.slots):
                gang.lose()
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
        leads = any(gang.grant.others for gang in self._led_gangs.values())
        if not (orders.in_gangs or leads or self.busy):
            return
        memberships = self._table.memberships(self._worker_id)
        led = list(self._led_gangs.values())
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

    def release_finished(self) -> bool:
        """Release the parts whose last ranks have exited; returns whether there were any."""
        over = [key for key, gang in self._gangs.items() if gang.pending_writes.end is not None]
        for key in over:
            if not self._gangs[key].lost:
                self._table.release_part(self._worker_id, *key)
            del self._gangs[key]
            self._announced.discard(key)
        return bool(over)

    def announce_leaving(self, why: str) -> None:
        """Ask the leaders to continue their gangs without this worker."""
        for key, gang in list(self._gangs.items()):
            if key not in self._announced:
                self._announced.add(key)
                gang.notify_leader(Leaves(why))

    def enforce_time_limits(self, over: bool) -> None:
        """Enforce what must happen even while the database does not answer."""
        for gang in self.gangs:
            gang.kill_stragglers()
            if over:
                gang.kill()

    def _admit_rank(self, number: int, fence: int, index: int, link: Channel) -> bool:
        """Let a rank from another host be attached; called in a thread of its own."""
        gang = self._led_gangs.get(number)
        if gang is None or gang.grant.fence != fence:
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
        saved = self._table.checkpoints(membership.number)
        wanted = [one for one in saved if str(one.path) == membership.rendezvous.resume_location]
        if wanted:
            return self._fetcher.request(membership.number, membership.fence, wanted)
        # it was replaced in between
        self._table.release_part(self._worker_id, membership.number, membership.fence)
        return False

    def _fork(self, key: Key, membership: GangMembership) -> None:
        """Fork the ranks; this worker has renewed the slots and may trust them."""
        part, where = membership.part, membership.rendezvous
        taken = busy_slots([*self._led_gangs.values(), *self.gangs])
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

    def _drop(self, key: Key) -> None:
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
