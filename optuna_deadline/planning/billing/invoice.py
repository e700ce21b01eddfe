"""What nodes cost, from when they were taken until they were given back: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optuna_deadline.planning.billing.price_schedule import Rate, Tariff
from optuna_deadline.policies.api import Money

_HALVINGS = 60

#: Seconds from the end of all training until the last worker has gone, which are paid for too.
RELEASE_SECONDS = 2.0


@dataclass
class Invoice:
    """Nodes that are paid for, each of a type and from an instant on.

    Attributes:
        tariff: What they cost.
        closed_cost: What the nodes that were given back have cost.
        node_seconds: How long those were held.
        since: By type, since when the present ones are held.
    """

    tariff: Tariff
    closed_cost: float = 0.0
    node_seconds: float = 0.0
    since: dict[str, list[float]] = field(default_factory=dict)

    def resize(self, slots: Mapping[str, int], at: float) -> None:
        """Hold nodes for so many slots of each type from now on.

        Those that came last are the first to go.
        """
        for kind in {**self.since, **slots}:
            nodes = self._nodes(kind, slots.get(kind, 0))
            there = self.since.setdefault(kind, [])
            while len(there) > nodes:
                self.give_back(there[-1], at, kind)
            there += [at] * (nodes - len(there))

    def give_back(self, since: float, at: float, kind: str = "") -> None:
        """End the bill of a node that is held since an instant."""
        self.since[kind].remove(since)
        self.closed_cost += self._rate(kind).cost(since, at)
        self.node_seconds += at - since

    def spent(self, now: float) -> float:
        """What is to be paid if everything is given back now."""
        return self.closed_cost + self._costs(self.since, now)

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        """The money as a policy sees it.

        A slot costs what those on offer cost in the middle, which is never less than those that
        are taken cost, since the cheapest are taken first. The rounding is taken at its worst.

        Args:
            now: The instant.
            offer: By type, the slots that workers offer.
            most: Slots that can be had.
        """
        rates = {kind: self._rate(kind) for kind, slots in offer.items() if slots}
        if not rates:
            rates = {"": max(self.tariff.rates.values(), key=lambda rate: rate.at(now))}
            offer = {"": 1}
        total = sum(offer[kind] for kind in rates)
        node = min(rate.node for rate in rates.values())
        spent, held, used = self.spent(now), 0, 0.0
        for kind, nodes in self.since.items():
            rate = self._rate(kind)
            held += len(nodes) * rate.node
            used += sum(rate.used(since, now) for since in nodes)
        return Money(
            budget=self.tariff.budget,
            spent=spent,
            price=sum(rate.at(now) * offer[kind] / total for kind, rate in rates.items()),
            granularity=max(rate.granularity for rate in rates.values()),
            startup=max(rate.startup for rate in rates.values()),
            minimum=max(rate.minimum for rate in rates.values()),
            node=node,
            offer=most // node * node,
            held=held // node * node,
            ahead=max(0.0, spent - self.closed_cost - used),
        )

    def affordable(self, now: float, slots: Mapping[str, int]) -> dict[str, int]:
        """As many of these slots as can be taken now: the dearest nodes are spared first.

        The budget has to pay for the start-up of each and for its way out.
        """
        wanted = {kind: count for kind, count in slots.items() if count > 0}
        while (
            self._total_cost(now, wanted, now + RELEASE_SECONDS, starting=True)
            > self.tariff.budget
        ):
            new = [kind for kind in wanted if self._extra_nodes(kind, wanted[kind]) > 0]
            if not new:
                break  # what is held is given back in time
            kind = max(new, key=lambda kind: (self._rate(kind).at(now), kind))
            wanted[kind] = (self._nodes(kind, wanted[kind]) - 1) * self._rate(kind).node
            if not wanted[kind]:
                del wanted[kind]
        return wanted

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        """Until when the budget pays for so many slots, and for those that are still held.

        What remains then pays for their way out.

        Args:
            now: Further nodes are taken now.
            slots: By type, how many are wanted.
            latest: The last instant that is asked for.
        """
        budget, latest = self.tariff.budget, latest + RELEASE_SECONDS
        if self._total_cost(now, slots, latest) <= budget:
            return latest - RELEASE_SECONDS
        low, high = now, latest
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self._total_cost(now, slots, middle) <= budget:
                low = middle
            else:
                high = middle
        return max(now, low - RELEASE_SECONDS)

    def _total_cost(
        self, now: float, slots: Mapping[str, int], until: float, *, starting: bool = False
    ) -> float:
        """What all nodes cost until an instant, further ones with what they are wanted for."""
        costs = self.closed_cost + self._costs(self.since, until)
        for kind, wanted in slots.items():
            rate, more = self._rate(kind), self._extra_nodes(kind, wanted)
            if more > 0:
                costs += more * rate.cost(now, until + (rate.startup if starting else 0.0))
        return costs

    def _costs(self, nodes: Mapping[str, list[float]], until: float) -> float:
        return sum(
            self._rate(kind).cost(since, until) for kind, there in nodes.items() for since in there
        )

    def _rate(self, kind: str) -> Rate:
        return self.tariff.rates[kind]

    def _extra_nodes(self, kind: str, slots: int) -> int:
        """Nodes that would have to be taken."""
        return self._nodes(kind, slots) - len(self.since.get(kind, ()))

    def _nodes(self, kind: str, slots: int) -> int:
        return -(-slots // self._rate(kind).node)
