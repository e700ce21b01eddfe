"""The cost of a node whose price changes over time. Pure."""

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
    """The price of the nodes of one type, and the rounding of their bill.

    A billing unit has the price of the instant at which it begins, so that later events change
    nothing that was billed. The minimum is one such unit.

    Attributes:
        prices: (instant, price of one slot for one second); the first holds before it, too.
        granularity: Seconds of a billing unit.
        startup: Seconds until a node's slots can be used.
        minimum: Minimum number of billed seconds of a node.
        node: Slots that are bought together.
    """

    prices: tuple[tuple[float, float], ...]
    granularity: float = 1.0
    startup: float = 0.0
    minimum: float = 0.0
    node: int = 1

    def at(self, instant: float) -> float:
        """The price of one slot for one second at an instant."""
        known = self.prices[0][1]
        for since, price in self.prices:
            if since > instant:
                break
            known = price
        return known

    def with_price(self, at: float, price: float) -> Rate:
        """The rate with a new price from an instant on."""
        before = [one for one in self.prices if one[0] < at]
        return replace(self, prices=(*(before or [(-math.inf, self.prices[0][1])]), (at, price)))

    def shifted(self, seconds: float) -> Rate:
        """This rate, shifted to later by some seconds."""
        return replace(self, prices=tuple([(at + seconds, price) for at, price in self.prices]))

    def cost(self, since: float, until: float) -> float:
        """The cost of one node that is held from one instant to another."""
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
        """The cost of the time itself, without rounding."""
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
    """A budget and the rate of each node type.

    Attributes:
        budget: The amount that may be spent.
        rates: By host type; "" if one rate is for all.
    """

    budget: float
    rates: Mapping[str, Rate] = field(hash=False)

    def host_type(self, host_type: str | None) -> str:
        """The type under which a host is billed; by default, the most expensive."""
        if "" in self.rates:
            return ""
        return host_type if host_type in self.rates and host_type else self.dearest

    @property
    def dearest(self) -> str:
        """The type with the highest initial price."""
        return max(self.rates, key=lambda kind: (self.rates[kind].prices[0][1], kind))

    def with_price(self, kind: str, at: float, per_hour: float, slots: int = 1) -> Tariff:
        """The tariff with a new price."""
        rate, price = self.rates.get(kind), per_hour / 3600.0
        new = Rate(((at, price),), node=slots) if rate is None else rate.with_price(at, price)
        return replace(self, rates={**self.rates, kind: new})


def tariff_of(budget: Budget, started: float) -> Tariff:
    """The initial tariff of a study.

    Args:
        budget: The user's budget.
        started: When the study began; some prices start a given time after it.
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
