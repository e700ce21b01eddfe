"""Where simulated nodes come from: asked for, waited for, billed, given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from optuna_deadline.planning.billing.invoice import Bill
from optuna_deadline.planning.billing.price_schedule import Rate, Tariff
from optuna_deadline.policies.money import Money
from optuna_deadline.simulation.clock import Timeline, Timer


@dataclass(frozen=True)
class Funding:
    """What a simulated study may spend, and on which terms.

    Attributes:
        budget: All that may be spent.
        price: Of one slot for one second.
        startup: Seconds from asking for a node until its worker is there; billed.
        granularity: Seconds of a unit of the bill.
        minimum: Seconds that a node is billed at least.
        offer: The most slots that can be had.
    """

    budget: float
    price: float = 1.0
    startup: float = 60.0
    granularity: float = 1.0
    minimum: float = 60.0
    offer: int = 256


class Provider:
    """Brings and takes nodes, and is the purse of the study's planner.

    Args:
        timeline: Virtual time.
        funding: Budget and terms.
        node: Slots of a node.
        start: Starts the worker of a node's host.
    """

    def __init__(
        self, timeline: Timeline, funding: Funding, node: int, start: Callable[[str], None]
    ) -> None:
        self._timeline = timeline
        self._funding = funding
        self._start = start
        rate = Rate(
            ((0.0, funding.price),), funding.granularity, funding.startup, funding.minimum, node
        )
        self._rate = rate
        self._bill = Bill(Tariff(funding.budget, {"": rate}))
        self._bill.since[""] = []
        self._since: dict[str, float] = {}
        self._coming: dict[str, Timer] = {}
        self._wanted = 0
        self._asked = 0

    # The purse.

    def read(self, now: float) -> None:
        """It knows what has happened."""

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        """The purse now; what workers offer already does not limit what can be had."""
        return self._bill.money(now, {}, self._funding.offer)

    def affordable(self, now: float, slots: Mapping[str, int]) -> dict[str, int]:
        """As many of these slots as the budget pays for taking now."""
        return self._bill.affordable(now, slots)

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        """Until when the budget pays for so many slots, and for the nodes that are still held."""
        return self._bill.lasts_until(now, slots, latest)

    @property
    def wanted(self) -> Mapping[str, int]:
        """The slots of the nodes that were asked for."""
        return {"": self._wanted * self._rate.node}

    def kind(self, worker: str | None = None) -> str:
        """All nodes are of one type."""
        return ""

    def price(self, kind: str, now: float) -> float:
        """Of a slot for a second."""
        return self._funding.price

    @property
    def slot_seconds(self) -> float:
        """Slot-seconds paid for so far, by the second."""
        now = self._timeline.now()
        held = sum(now - since for since in self._since.values())
        return (self._bill.node_seconds + held) * self._rate.node

    @property
    def budget(self) -> float:
        """All that may be spent."""
        return self._funding.budget

    @property
    def spent(self) -> float:
        """What the bill says now."""
        return self._bill.spent(self._timeline.now())

    # Nodes.

    def want(self, slots: int) -> None:
        """Ask for nodes, or cancel those that have not come yet."""
        self._wanted = -(-slots // self._rate.node)
        for host in reversed(list(self._coming)):
            if len(self._since) > self._wanted:
                self._coming.pop(host).cancel()
                self._end(host)
        while len(self._since) < self._wanted:
            self._asked += 1
            host, now = f"node{self._asked}", self._timeline.now()
            self._since[host] = now
            self._bill.since[""].append(now)
            self._coming[host] = self._timeline.after(
                self._funding.startup, partial(self._arrive, host)
            )

    def spare(self, host: str) -> bool:
        """Whether an idle node may be given back."""
        return host in self._since and len(self._since) > self._wanted

    def give_back(self, host: str) -> None:
        """A node's worker has left."""
        if host in self._since:
            self._end(host)

    def _arrive(self, host: str) -> None:
        del self._coming[host]
        self._start(host)

    def _end(self, host: str) -> None:
        self._bill.give_back(self._since.pop(host), self._timeline.now())
