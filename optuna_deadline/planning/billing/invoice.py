"""The cost of nodes from their request to their return. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optuna_deadline.planning.billing.price_schedule import Rate, Tariff
from optuna_deadline.policies.api import Money

_HALVINGS = 60

#: Paid seconds from the end of all training until the last worker has left.
RELEASE_SECONDS = 2.0


@dataclass
class Invoice:
    """The nodes that are paid for, each with its type and its start.

    Attributes:
        tariff: The budget and the rates.
        closed_cost: The cost of returned nodes.
        node_seconds: How long returned nodes were held.
        since: By type, when the present nodes were requested.
    """

    tariff: Tariff
    closed_cost: float = 0.0
    node_seconds: float = 0.0
    since: dict[str, list[float]] = field(default_factory=dict)

    def resize(self, slots: Mapping[str, int], at: float) -> None:
        """Hold nodes for this number of slots of each type from now on.

        The newest nodes are returned first.
        """
        for kind in {**self.since, **slots}:
            nodes = self._nodes(kind, slots.get(kind, 0))
            there = self.since.setdefault(kind, [])
            while len(there) > nodes:
                self.give_back(there[-1], at, kind)
            there += [at] * (nodes - len(there))

    def give_back(self, since: float, at: float, kind: str = "") -> None:
        """Close the bill of a node that was requested at an instant."""
        self.since[kind].remove(since)
        self.closed_cost += self._rate(kind).cost(since, at)
        self.node_seconds += at - since

    def spent(self, now: float) -> float:
        """The cost if all nodes are returned now."""
        return self.closed_cost + self._costs(self.since, now)

    def money(self, now: float, offer: Mapping[str, int], most: int) -> Money:
        """The money as a policy sees it.

        The price of a slot is the mean price of the slots on offer. It is never below that of the
        bought ones, because the cheapest are bought first. Rounding is taken at its worst.

        Args:
            now: The instant.
            offer: By type, the slots that workers offer.
            most: The most slots that can be bought.
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
        """The number of these slots that can be bought now, the cheapest nodes first.

        The budget must pay for the start-up of each node and for its closing.
        """
        wanted = {kind: count for kind, count in slots.items() if count > 0}
        while (
            self._total_cost(now, wanted, now + RELEASE_SECONDS, starting=True)
            > self.tariff.budget
        ):
            new = [kind for kind in wanted if self._extra_nodes(kind, wanted[kind]) > 0]
            if not new:
                break  # held nodes are returned in time
            kind = max(new, key=lambda kind: (self._rate(kind).at(now), kind))
            wanted[kind] = (self._nodes(kind, wanted[kind]) - 1) * self._rate(kind).node
            if not wanted[kind]:
                del wanted[kind]
        return wanted

    def lasts_until(self, now: float, slots: Mapping[str, int], latest: float) -> float:
        """Until when the budget pays for these slots and for those that are still held.

        The rest then pays for the closing.

        Args:
            now: Further nodes are bought now.
            slots: By type, the wanted slots.
            latest: The last instant to consider.
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
        """The cost of all nodes until an instant, including those that have to be bought."""
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
        """Nodes that have to be bought."""
        return self._nodes(kind, slots) - len(self.since.get(kind, ()))

    def _nodes(self, kind: str, slots: int) -> int:
        return -(-slots // self._rate(kind).node)
