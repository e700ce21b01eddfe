"""A worker as the stateful test sees it: what it believes, and what its ranks use.

It does what the agent does, with ranks that take as long to die as the timing law allows: margin
and grace together must outlast a killed rank's hold on its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from allocation.suite.world import checkpoint

from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import LeaseLost

MARGIN = 5.0
TEARDOWN = 12.0  #: seconds from a kill until the slot is free; below margin + grace


@dataclass
class Ranks:
    """One segment's processes."""

    grant: Grant
    gone: float = float("inf")  #: when they are off their slots
    leaving: bool = False  #: its release was sent, heard or not
    lost: bool = False


class ModelWorker:
    """One incarnation of a worker: a new one for each process.

    Args:
        me: Its id; what stands before the dot is the same for every restart.
        table: The store.
        now: The time, the same for all clocks.
        wait: Lets time pass in the middle of something.
    """

    margin: ClassVar[float] = MARGIN
    has_watchdog: ClassVar[bool] = True

    def __init__(
        self,
        me: str,
        table: AllocationTable,
        now: Callable[[], float],
        wait: Callable[[float], None],
    ) -> None:
        self.me = me
        self.table = table
        self.now = now
        self.wait = wait
        self.gangs: dict[int, Ranks] = {}
        self.past: list[Ranks] = []  #: forgotten by the agent, perhaps not yet gone
        self.slots: list[int] = []
        self.trusted_until = 0.0
        self.term: int | None = None
        self.frozen = False
        self.dead = False
        self.steps = 0

    @property
    def awake(self) -> bool:
        return not (self.frozen or self.dead)

    @property
    def ranks(self) -> list[Ranks]:
        return [*self.gangs.values(), *self.past]

    def in_use(self) -> list[Grant]:
        """What its ranks use now, whatever the agent knows."""
        return [ranks.grant for ranks in self.ranks if self.now() < ranks.gone]

    def believed(self) -> list[Grant]:
        """What the agent takes for its own."""
        if self.dead or self.now() >= self.trusted_until:
            return []
        return [r.grant for r in self.gangs.values() if not (r.leaving or r.lost)]

    def register(self, host: str, devices: Sequence[str]) -> None:
        sent = self.now()
        self.slots = [row.id for row in self.table.register(self.me, host, 1, devices, 0)]
        self.trust(sent, sent)

    def trust(self, sent: float, answered: float) -> None:
        """Believe in leases that were asked for at ``sent``, whenever the answer came."""
        self.trusted_until = sent + self.table.ttl - self.margin

    def watch(self) -> None:
        """The watchdog, a process of its own: it works while the agent is frozen."""
        if self.has_watchdog and self.now() >= self.trusted_until:
            for ranks in self.ranks:
                ranks.gone = min(ranks.gone, self.trusted_until + TEARDOWN)

    def renew(self, delay: float = 0.0, heard: bool = True) -> None:
        mine = [ranks for ranks in self.gangs.values() if not (ranks.lost or ranks.leaving)]
        sent = self.now()
        renewal = self.table.renew(self.me, [pair for r in mine for pair in r.grant.slots])
        self.wait(delay)
        if not heard:
            return
        self.trust(sent, self.now())
        for ranks in mine:
            if not renewal.kept.issuperset(ranks.grant.slots):
                self.lose(ranks)

    def lose(self, ranks: Ranks) -> None:
        ranks.lost = True
        ranks.gone = min(ranks.gone, self.now() + TEARDOWN)

    def start(self, number: int, *, heard: bool = True, freeze: float = 0.0) -> None:
        """Acquire and launch what the plan wants; the agent may freeze between the two."""
        slots = self.slots_for(number)
        if slots is None:
            return
        grant = self.table.acquire(self.me, number, slots)
        if grant is None or not heard:
            return
        self.wait(freeze)
        if self.may_launch():
            self.gangs[number] = Ranks(grant)

    def slots_for(self, number: int) -> list[int] | None:
        """Slots that it thinks are free, where the plan wants the trial here."""
        lines = [line for line in self.table.orders(self.me).trials if line.number == number]
        if number in self.gangs or not lines:
            return None
        [line] = lines
        if line.owner is not None or (line.mode, line.worker) != ("run", self.me):
            return None
        busy = {slot for ranks in self.gangs.values() for slot, _ in ranks.grant.slots}
        free = [slot for slot in self.slots if slot not in busy]
        return free[: line.slots] if len(free) >= line.slots else None

    def may_launch(self) -> bool:
        return self.now() < self.trusted_until

    def stop(self, number: int) -> Callable[[], object]:
        """Let the ranks save and exit; returns the release that is to be sent."""
        ranks = self.gangs[number]
        ranks.gone = min(ranks.gone, self.now())
        ranks.leaving = True
        return lambda: self.table.release(self.me, ranks.grant, "paused", ended="pause")

    def follow(self, obey: bool = True) -> None:
        """Follow the plan: drop lost grants, retry releases, release grants without an answer.

        Without ``obey`` the ranks follow in a later call.
        """
        orders = {line.number: line for line in self.table.orders(self.me).trials}
        for number, ranks in list(self.gangs.items()):
            line = orders.get(number)
            if line is None or (line.owner, line.fence) != (self.me, ranks.grant.fence):
                self.lose(ranks)
            elif obey and (line.mode, line.worker, line.slots) != (
                "run",
                self.me,
                ranks.grant.size,
            ):
                self.stop(number)
            if self.now() >= ranks.gone:
                if not ranks.lost:
                    self.stop(number)()
                self.past.append(self.gangs.pop(number))
        for number, line in orders.items():
            if line.owner == self.me and number not in self.gangs:
                self.table.cancel_grant(self.me, number, line.fence)

    def start_all(self) -> None:
        for line in self.table.orders(self.me).trials:
            self.start(line.number)

    def save(self, ranks: Ranks) -> bool:
        """Commit a checkpoint; whether the store took it."""
        self.steps += 1
        try:
            self.table.add_checkpoint(self.me, ranks.grant, checkpoint(ranks.grant, self.steps))
        except LeaseLost:
            self.lose(ranks)
            return False
        return True

    def crash(self) -> None:
        """The pipe to the watchdog closes, and it kills the ranks."""
        self.dead = True
        if self.has_watchdog:
            for ranks in self.ranks:
                ranks.gone = min(ranks.gone, self.now() + TEARDOWN)
