"""What nodes cost, from when they were taken until they were given back: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from optuna_deadline.policies.money import Money

_HALVINGS = 60

#: Seconds from the end of all training until the last worker has gone, which are paid for too.
FAREWELL = 2.0


@dataclass
class Bill:
    """Nodes that are paid for, each from an instant on.

    Attributes:
        terms: What a node costs; its ``spent`` says nothing here.
        closed: What the nodes that were given back have cost.
        node_seconds: How long those were held.
        since: Since when the present ones are held.
    """

    terms: Money
    closed: float = 0.0
    node_seconds: float = 0.0
    since: list[float] = field(default_factory=list)

    def resize(self, nodes: int, at: float) -> None:
        """Hold so many nodes from now on: those that came last are the first to go."""
        while len(self.since) > nodes:
            self.give_back(self.since[-1], at)
        self.since += [at] * (nodes - len(self.since))

    def give_back(self, since: float, at: float) -> None:
        """End the bill of a node that is held since an instant."""
        self.since.remove(since)
        self.closed += self.terms.charge(at - since)
        self.node_seconds += at - since

    def spent(self, now: float) -> float:
        """What is to be paid if everything is given back now."""
        return self.closed + sum(self.terms.charge(now - since) for since in self.since)

    def money(self, now: float, offer: int) -> Money:
        """The purse as a policy sees it."""
        held = len(self.since) * self.terms.node
        spent = self.spent(now)
        used = sum(now - since for since in self.since) * self.terms.node * self.terms.price
        ahead = max(0.0, spent - self.closed - used)
        return replace(self.terms, spent=spent, offer=offer, held=held, ahead=ahead)

    def lasts_until(self, now: float, nodes: int, latest: float) -> float:
        """Until when the budget pays for so many nodes, and for those that are still held.

        What remains then pays for their way out.

        Args:
            now: Further nodes are taken now.
            nodes: How many are wanted.
            latest: Nobody asks beyond it.
        """
        since = [*self.since, *[now] * (nodes - len(self.since))]
        latest += FAREWELL
        if self._costs(since, latest) <= self.terms.budget:
            return latest - FAREWELL
        low, high = now, latest
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self._costs(since, middle) <= self.terms.budget:
                low = middle
            else:
                high = middle
        return max(now, low - FAREWELL)

    def _costs(self, since: Iterable[float], until: float) -> float:
        return self.closed + sum(self.terms.charge(until - start) for start in since)
