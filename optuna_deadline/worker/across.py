"""All that a worker has to do with other workers: gangs that it leads, and parts that it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from optuna_deadline.allocation.records import Orders
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints.restore import Resuming
from optuna_deadline.rank.link import RawLink
from optuna_deadline.rank.rendezvous import Reception
from optuna_deadline.worker.event_loop import Switchboard
from optuna_deadline.worker.fork import Terms
from optuna_deadline.worker.gang_leader import Meetings
from optuna_deadline.worker.gang_member import Helping, busy_slots
from optuna_deadline.worker.lease_clock import Trust
from optuna_deadline.worker.segment import Gang


class Across:
    """A worker's side of gangs that cross workers.

    Args:
        table: The allocation table.
        me: The worker.
        board: Has the zygote.
        resuming: Brings checkpoints of others' trials here.
        trust: How far the leases are believed.
        terms: What all ranks of the worker have in common.
        address: Of this host, for others; None where the worker is in no gang with them.
        led: The gangs that this worker leads, by their trials' numbers.
    """

    def __init__(
        self,
        table: AllocationStore,
        me: str,
        board: Switchboard,
        resuming: Resuming,
        trust: Trust,
        terms: Callable[[], Terms],
        address: str | None,
        led: Mapping[int, Gang],
    ) -> None:
        self._table = table
        self._me = me
        self._board = board
        self._led = led
        self._reception = None if address is None else Reception(address, self._admit)
        self.meetings = Meetings(table, me, self._reception)
        self.helping = Helping(table, me, board, resuming, trust, terms, address)

    def follow(self, orders: Orders, renew: Callable[[], None], *, open: bool) -> None:
        """Read how things stand, where there is anything to read.

        Args:
            orders: As they were read just now.
            renew: Renews all leases of the worker.
            open: Whether something new may be started.
        """
        leads = any(gang.grant.others for gang in self._led.values())
        if not (orders.called or leads or self.helping.busy):
            return
        hands = self._table.hands(self._me)
        self.meetings.miss_who_is_gone(self._led, hands)
        occupied = busy_slots(self._led.values())
        if self.helping.follow(hands, occupied, open=open):
            renew()
            self.helping.follow(hands, occupied, open=open)

    def close(self) -> None:
        """Let nobody in any more."""
        if self._reception is not None:
            self._reception.close()

    def _admit(self, number: int, fence: int, index: int, link: RawLink) -> bool:
        """A rank on another host has come; called from a thread of its own."""
        gang = self._led.get(number)
        if gang is None or gang.grant.fence != fence or not gang.attach(index, link):
            return False
        self._board.wake()
        return True
