"""The member's side of gangs over several workers: its slots and its ranks for another's trial.

The leader owns the trial; a member knows only where its ranks meet. So in any doubt the member
releases its part, which ends the segment for all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from optuna_deadline.allocation.records import GangMembership, Grant, NewReport, Orders
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.restore import CheckpointFetcher
from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.messages import Leaves, Message
from optuna_deadline.rank.rendezvous import LeaderEndpoint, RankServer
from optuna_deadline.worker.event_loop import EventLoop
from optuna_deadline.worker.fork import LocalRanks, RankSettings, fork_ranks
from optuna_deadline.worker.gang_leader import GangLeader
from optuna_deadline.worker.lease_clock import LeaseClock
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang

_logger = logging.getLogger("optuna_deadline")

Key = tuple[int, int]  #: number and fence


class GangMember:
    """The parts that a worker gives to other workers' gangs.

    Args:
        table: The allocation table.
        worker_id: The worker.
        event_loop: Has the fork server.
        fetcher: Fetches checkpoints to this host.
        lease_clock: Until when the leases are trusted.
        settings: Settings of all ranks of the worker.
        address: The address of this host for others.
    """

    def __init__(
        self,
        table: AllocationTable,
        worker_id: str,
        event_loop: EventLoop,
        fetcher: CheckpointFetcher,
        lease_clock: LeaseClock,
        settings: Callable[[], RankSettings],
        address: str | None,
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._event_loop = event_loop
        self._fetcher = fetcher
        self._lease_clock = lease_clock
        self._settings = settings
        self._address = address
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
            if gang.lost:
                continue
            if not set(kept).issuperset(gang.grant.slots):
                gang.lose()
        for key, hand in list(self._accepted.items()):
            if set(kept).issuperset(hand.part.slots):
                self._renewed.add(key)
            else:
                self._drop(key)

    def reconcile(
        self, memberships: Collection[GangMembership], occupied: Collection[int], *, open: bool
    ) -> bool:
        """Start the parts that the table asks for and end those that are over.

        Args:
            memberships: As the table has them now.
            occupied: Slots with other ranks of this worker.
            open: Whether new parts may start.

        Returns:
            Whether leases must be renewed before a rank is forked.
        """
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
                and self._event_loop.fork_server.ready
                and self._can_start(hand)
            ):
                self._fork(key, hand, occupied)
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

    def _fork(self, key: Key, membership: GangMembership, occupied: Collection[int]) -> None:
        """Fork the ranks; this worker has renewed the slots and may trust them."""
        part, where = membership.part, membership.rendezvous
        taken = {*occupied, *(slot for gang in self.gangs for slot, _ in gang.grant.slots)}
        if where is None or not taken.isdisjoint([slot for slot, _ in part.slots]):
            return  # a rank that lost them is about to exit
        if time.monotonic() >= self._lease_clock.trusted_until:
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
        gang = self._gangs[key] = Gang(
            grant, 0, 0.0, inbox=_NullInbox(), call_soon=self._event_loop.call_soon
        )
        local_ranks = LocalRanks(
            part.first_rank,
            membership.size,
            part.first_rank // part.size,
            (where.address, where.port),
            self._address,
            LeaderEndpoint(where.address, where.link_port, where.key),
        )
        settings, until = self._settings(), self._lease_clock.trusted_until
        gang.call_soon(
            lambda: fork_ranks(
                self._event_loop.fork_server, gang, local_ranks, resume, settings, until
            )
        )

    def _drop(self, key: Key) -> None:
        self._accepted.pop(key, None)
        self._renewed.discard(key)


class _NullInbox:
    """The inbox of ranks that send to the leader on another host."""

    never_reported = True

    def receive(self, rank: Rank, message: Message) -> None:
        """Ignore the message: these ranks send nothing here."""

    def store(self, reports: Sequence[NewReport], checkpoints: Sequence[Checkpoint]) -> None:
        """Do nothing: the leader stores their reports."""

    def copy_to_optuna(self, reports: Sequence[NewReport]) -> None:
        """Do nothing: the leader copies the trial's reports."""


def busy_slots(gangs: Iterable[Gang]) -> set[int]:
    """The slots with ranks of these gangs."""
    return {slot for gang in gangs for slot, _ in gang.grant.slots}


class CrossHostGangs:
    """A worker's side of gangs over several workers: those it leads, and the parts it gives.

    Args:
        table: The allocation table.
        worker_id: The worker.
        event_loop: Has the fork server.
        fetcher: Fetches checkpoints of others' trials to this host.
        lease_clock: Until when the leases are trusted.
        settings: Settings of all ranks of the worker.
        address: The address of this host for others; None if the worker is in no gang with them.
        led_gangs: The gangs that this worker leads, by trial number.
    """

    def __init__(
        self,
        table: AllocationTable,
        worker_id: str,
        event_loop: EventLoop,
        fetcher: CheckpointFetcher,
        lease_clock: LeaseClock,
        settings: Callable[[], RankSettings],
        address: str | None,
        led_gangs: Mapping[int, Gang],
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._event_loop = event_loop
        self._led_gangs = led_gangs
        self._rank_server = None if address is None else RankServer(address, self._admit_rank)
        self.leader = GangLeader(table, worker_id, self._rank_server)
        self.member = GangMember(
            table, worker_id, event_loop, fetcher, lease_clock, settings, address
        )

    def reconcile(self, orders: Orders, renew: Callable[[], None], *, open: bool) -> None:
        """Reconcile with the table, if anything needs it.

        Args:
            orders: The orders in the newest reading.
            renew: Renews all leases of the worker.
            open: Whether new parts may start.
        """
        leads = any(gang.grant.others for gang in self._led_gangs.values())
        if not (orders.in_gangs or leads or self.member.busy):
            return
        hands = self._table.memberships(self._worker_id)
        led = list(self._led_gangs.values())
        self._event_loop.call_soon(lambda: self.leader.drop_lost_members(led, hands))
        occupied = busy_slots(self._led_gangs.values())
        if self.member.reconcile(hands, occupied, open=open):
            renew()
            self.member.reconcile(hands, occupied, open=open)

    def close(self) -> None:
        """Accept no more connections."""
        if self._rank_server is not None:
            self._rank_server.close()

    def _admit_rank(self, number: int, fence: int, index: int, link: Channel) -> bool:
        """Let a rank from another host be attached; called in a thread of its own."""
        gang = self._led_gangs.get(number)
        if gang is None or gang.grant.fence != fence:
            return False

        def attach() -> None:
            if not gang.attach_remote_rank(index, link):
                link.close()

        self._event_loop.call_soon(attach)
        return True
