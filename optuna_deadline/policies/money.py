"""Money, as a policy sees it: what may be spent, what a slot costs, how the bill is rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Money:
    """A study's purse, and the terms on which slots are bought.

    Slots come in nodes. A node is billed from the moment it is asked for, its start-up included,
    until it has been given back, in whole units of the granularity.

    Attributes:
        budget: All that may be spent.
        spent: What the bill says so far: the units that have begun are in it.
        price: Of one slot for one second.
        granularity: Seconds of a unit of the bill.
        startup: Seconds from asking for a node until its slots can be used; billed.
        minimum: Seconds that a node is billed at least.
        node: Slots bought at once.
        offer: The most slots that can be had.
        held: Slots that are paid for now, those of nodes that still start up among them.
        ahead: What of the money spent pays for time to come: begun units and minimum charges.
    """

    budget: float
    spent: float
    price: float
    granularity: float = 1.0
    startup: float = 0.0
    minimum: float = 0.0
    node: int = 1
    offer: int = 1024
    held: int = 0
    ahead: float = 0.0

    @property
    def left(self) -> float:
        """What may still be spent, never negative."""
        return max(0.0, self.budget - self.spent)

    @property
    def entrance(self) -> float:
        """What a node costs before it has trained anything."""
        return self.charge(self.startup)

    def charge(self, seconds: float) -> float:
        """What one node costs that is held for so long, rounded as the provider rounds."""
        held = max(seconds, self.minimum, 0.0)
        if self.granularity > 0:
            held = max(1, math.ceil(held / self.granularity - _ROUNDING)) * self.granularity
        return self.price * self.node * held

    def nodes(self, slots: int) -> int:
        """Nodes that hold so many slots."""
        return -(-slots // self.node)

    @property
    def affordable(self) -> int:
        """The most slots, in whole nodes, that can be held from now on.

        What is held costs nothing more at this moment; each further node costs its entrance.
        """
        have = self.nodes(self.held)
        if self.left <= 0:
            return 0
        most = self.offer // self.node
        if self.entrance > 0:
            most = min(most, have + math.floor(self.left / self.entrance + _ROUNDING))
        return most * self.node
