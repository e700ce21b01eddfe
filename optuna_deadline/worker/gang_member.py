"""Gangs that cross workers, from a further worker's side: its slots, its ranks, another's trial.

The trial is its leader's: here nothing is known of it but where its ranks meet. So whatever is
doubtful is settled by giving the part back, which ends the segment for all.

All that a worker has to do with other workers: gangs that it leads, and parts that it gives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from optuna_deadline.allocation.records import Grant, Hand, NewReport, Orders
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.restore import Resuming
from optuna_deadline.rank.link import RawLink
from optuna_deadline.rank.rendezvous import Door, Reception
from optuna_deadline.worker.event_loop import Switchboard
from optuna_deadline.worker.fork import Crew, Terms, launch
from optuna_deadline.worker.gang_leader import Meetings
from optuna_deadline.worker.lease_clock import Trust
from optuna_deadline.worker.segment import Gang, Rank

_logger = logging.getLogger("optuna_deadline")

Key = tuple[int, int]  #: number and fence


class Helping:
    """The parts that a worker gives to others' gangs.

    Args:
        table: The allocation table.
        me: The worker.
        board: Has the zygote.
        resuming: Brings checkpoints here.
        trust: How far the leases are believed.
        terms: What all ranks of the worker have in common.
        address: Of this host, for others.
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
    ) -> None:
        self._table = table
        self._me = me
        self._board = board
        self._resuming = resuming
        self._trust = trust
        self._terms = terms
        self._address = address
        self._accepted: dict[Key, Hand] = {}  # they are renewed, and have no rank yet
        self._renewed: set[Key] = set()
        self._gangs: dict[Key, Gang] = {}
        self._said: set[Key] = set()

    @property
    def gangs(self) -> list[Gang]:
        """Those whose ranks are here."""
        return list(self._gangs.values())

    @property
    def busy(self) -> bool:
        """Whether it holds anything for others."""
        return bool(self._gangs or self._accepted)

    @property
    def slots(self) -> list[tuple[int, int]]:
        """What is to be renewed, with its fences."""
        running = [gang.grant.slots for gang in self._gangs.values() if not gang.lost]
        waiting = [hand.part.slots for hand in self._accepted.values()]
        return [pair for pairs in (*running, *waiting) for pair in pairs]

    def hear(self, kept: Collection[tuple[int, int]], until: float) -> None:
        """Take a renewal's answer: what was not kept is somebody else's by now."""
        for gang in self._gangs.values():
            if gang.lost:
                continue
            if not set(kept).issuperset(gang.grant.slots):
                _lose(gang)
            else:
                gang.trust(until)
        for key, hand in list(self._accepted.items()):
            if set(kept).issuperset(hand.part.slots):
                self._renewed.add(key)
            else:
                del self._accepted[key]

    def follow(self, hands: Collection[Hand], occupied: Collection[int], *, open: bool) -> bool:
        """Start what is asked for, end what is over.

        Args:
            hands: As the table has them now.
            occupied: Slots on which other ranks of this worker are.
            open: Whether something new may be started.

        Returns:
            Whether leases must be renewed before a rank is forked.
        """
        mine = {(h.number, h.fence): h for h in hands if h.part.worker == self._me}
        for key, gang in self._gangs.items():
            if key not in mine:
                _lose(gang)
            elif not mine[key].stands:
                gang.kill()
        for key in [key for key in self._accepted if key not in mine]:
            self._drop(key)
        for key, hand in mine.items():
            if key in self._gangs:
                continue
            if not hand.stands or not open:
                self._drop(key)
                self._table.give_back(self._me, *key)
                continue
            self._accepted[key] = hand
            if key in self._renewed and self._board.zygote.ready and self._ready(hand):
                self._fork(key, hand, occupied)
        return any(key not in self._renewed for key in self._accepted)

    def write(self) -> bool:
        """Give back the parts whose last ranks have exited; returns whether there were any."""
        over = [
            key
            for key, gang in self._gangs.items()
            if gang.over and all(rank.closed for rank in gang.ranks)
        ]
        for key in over:
            if not self._gangs[key].lost:
                self._table.give_back(self._me, *key)
            del self._gangs[key]
            self._said.discard(key)
        return bool(over)

    def tell_leaving(self, why: str) -> None:
        """Let the leaders know that their gangs must go on without this worker."""
        for key, gang in list(self._gangs.items()):
            if key not in self._said:
                self._said.add(key)
                gang.pass_on("leaving", why=why)

    def mind_the_time(self, over: bool) -> None:
        """What must happen even while the database does not answer."""
        for gang in self.gangs:
            gang.kill_stragglers()
            if over:
                gang.kill()

    def _ready(self, hand: Hand) -> bool:
        """Whether the ranks can start: it is known where they meet, and the checkpoint is here."""
        if hand.meeting is None:
            return False
        if hand.meeting.resume is None:
            return True
        saved = self._table.checkpoints(hand.number)
        wanted = [one for one in saved if str(one.path) == hand.meeting.resume]
        if wanted:
            return self._resuming.ask(hand.number, hand.fence, wanted)
        self._table.give_back(self._me, hand.number, hand.fence)  # it was replaced meanwhile
        return False

    def _fork(self, key: Key, hand: Hand, occupied: Collection[int]) -> None:
        """The slots were renewed by this worker: now it may believe in them."""
        part, where = hand.part, hand.meeting
        taken = {*occupied, *(slot for gang in self.gangs for slot, _ in gang.grant.slots)}
        if where is None or not taken.isdisjoint([slot for slot, _ in part.slots]):
            return  # somebody who lost them is about to go
        if time.monotonic() >= self._trust.until:
            return
        resume = None if where.resume is None else self._resuming.take(hand.number)
        self._drop(key)
        if where.resume is not None and resume is None:
            _logger.warning("Trial %d's checkpoint cannot be read on this host.", hand.number)
            self._table.give_back(self._me, *key)
            return
        grant = Grant(hand.number, hand.trial_id, hand.fence, part.slots, part.devices)
        gang = self._gangs[key] = Gang(grant, 0, 0.0, listener=_Deaf())
        crew = Crew(
            part.first, hand.size, part.first // part.size, (where.address, where.port),
            self._address, Door(where.address, where.link, where.key),
        )  # fmt: skip
        launch(self._board.zygote, gang, crew, resume, self._terms(), self._trust.until)

    def _drop(self, key: Key) -> None:
        self._accepted.pop(key, None)
        self._renewed.discard(key)


class _Deaf:
    """Ranks of others' gangs speak to who leads them."""

    silent = True

    def hear(self, rank: Rank, message: tuple[Any, ...]) -> None:
        """They have nothing to say here."""

    def store(self, reports: Sequence[NewReport], checkpoints: Sequence[Checkpoint]) -> None:
        """Their reports go to the worker that leads it."""

    def copy(self, reports: Sequence[NewReport]) -> None:
        """The reports of their trial, too."""


def _lose(gang: Gang) -> None:
    gang.lost = True
    gang.kill()


def busy_slots(gangs: Iterable[Gang]) -> set[int]:
    """The slots on which ranks of these gangs are."""
    return {slot for gang in gangs for slot, _ in gang.grant.slots}


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
