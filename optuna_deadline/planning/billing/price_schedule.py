"""What a node costs, where its price changes over time: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.deadlines import parse_deadline
from optuna_deadline.values.prices import Price

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Rate:
    """The price of the nodes of one type, and how their bill is rounded.

    A unit of the bill is paid at the price of the instant at which it begins, so that nothing that
    comes later changes what was billed. What is billed at least is one such unit.

    Attributes:
        prices: Each from an instant on, of one slot for a second; the first holds before, too.
        granularity: Seconds of a unit of the bill.
        startup: Seconds until a node's slots can be used.
        minimum: Seconds that a node is billed at least.
        node: Slots bought at once.
    """

    prices: tuple[tuple[float, float], ...]
    granularity: float = 1.0
    startup: float = 0.0
    minimum: float = 0.0
    node: int = 1

    def at(self, instant: float) -> float:
        """Of one slot for a second."""
        known = self.prices[0][1]
        for since, price in self.prices:
            if since > instant:
                break
            known = price
        return known

    def with_price(self, at: float, price: float) -> Rate:
        """The rate after a price was told, which holds from then on."""
        before = [one for one in self.prices if one[0] < at]
        return replace(self, prices=(*(before or [(-math.inf, self.prices[0][1])]), (at, price)))

    def shifted(self, seconds: float) -> Rate:
        """The same rate, so many seconds later."""
        return replace(self, prices=tuple([(at + seconds, price) for at, price in self.prices]))

    def cost(self, since: float, until: float) -> float:
        """What one node costs that is held from an instant until another."""
        held, unit = max(until - since, self.minimum, 0.0), self.granularity
        if unit <= 0:
            least = min(held, self.minimum)
            whole = least * self.at(since) + self._used(since + least, since + held)
            return whole * self.node
        units = max(1, _whole(held / unit))
        first = min(units, max(1, _whole(self.minimum / unit)))
        total = first * self.at(since)
        for price, begin, end in self._steps():
            from_unit = first if begin <= since else max(first, _whole((begin - since) / unit))
            to_unit = units if end == math.inf else min(units, _whole((end - since) / unit))
            total += max(0, to_unit - from_unit) * price
        return total * unit * self.node

    def used(self, since: float, until: float) -> float:
        """What the time itself costs, without rounding."""
        return self._used(since, until) * self.node

    def _used(self, since: float, until: float) -> float:
        return sum(
            price * max(0.0, min(end, until) - max(begin, since))
            for price, begin, end in self._steps()
        )

    def _steps(self) -> list[tuple[float, float, float]]:
        """Prices, each with its begin and its end."""
        begins = [-math.inf, *[since for since, _ in self.prices[1:]]]
        ends = [*begins[1:], math.inf]
        prices = [price for _, price in self.prices]
        return list(zip(prices, begins, ends, strict=True))


def _whole(units: float) -> int:
    return math.ceil(units - _ROUNDING)


@dataclass(frozen=True)
class Tariff:
    """A budget, and the rate of each type of node.

    Attributes:
        budget: All that may be spent.
        rates: By host type; one for all has the type "".
    """

    budget: float
    rates: Mapping[str, Rate] = field(hash=False)

    def host_type(self, host_type: str | None) -> str:
        """The type under which a host is billed; that of the dearest where it has no price."""
        if "" in self.rates:
            return ""
        return host_type if host_type in self.rates and host_type else self.dearest

    @property
    def dearest(self) -> str:
        """The type whose slots cost most at first."""
        return max(self.rates, key=lambda kind: (self.rates[kind].prices[0][1], kind))

    def with_price(self, kind: str, at: float, per_hour: float, slots: int = 1) -> Tariff:
        """The tariff after a price was told."""
        rate, price = self.rates.get(kind), per_hour / 3600.0
        new = Rate(((at, price),), node=slots) if rate is None else rate.with_price(at, price)
        return replace(self, rates={**self.rates, kind: new})


def tariff_of(budget: Budget, started: float) -> Tariff:
    """The tariff that a study begins with.

    Args:
        budget: As people wrote it.
        started: When the study began: some prices hold from so long after it on.
    """
    return Tariff(
        budget.amount, {kind: _rate(price, started) for kind, price in budget.prices.items()}
    )


def _rate(price: Price, started: float) -> Rate:
    later = [
        (parse_deadline(since).instant(started), per_hour / 3600.0)
        for since, per_hour in price.then
    ]
    return Rate(
        ((-math.inf, price.per_second), *sorted(later)),
        price.granularity, price.startup, price.minimum, price.node,
    )  # fmt: skip
