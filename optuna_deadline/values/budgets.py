"""Budgets in the notation of users: "20usd" to spend at 0.9 per slot and hour."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna_deadline.errors import DeadlineError, spelled
from optuna_deadline.values.prices import Price, PriceLike, Prices, make_prices, parse_amount

BudgetLike = str | int | float

#: The environment variable with the host's type.
HOST_TYPE = "OPTUNA_DEADLINE_HOST_TYPE"

#: Seconds that a slot needs to start, train a little and save.
_SHORTEST = 5.0


@dataclass(frozen=True)
class Budget:
    """The budget of a study and the prices of slots.

    Attributes:
        amount: The amount that may be spent.
        price: The price of slots, by host type if it depends on that.
        currency: The name of the currency, for display.
    """

    amount: float
    price: Price | Prices = field(hash=False)
    currency: str = "usd"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.amount) and self.amount > 0):
            raise DeadlineError(
                f"A budget of {self.amount:g} {self.currency} pays for nothing; give a positive "
                "amount as in '20usd'."
            )
        entrance, kind = min((_entrance(price), kind) for kind, price in self.prices.items())
        if self.amount < entrance:
            price = self.prices[kind]
            of = f" of {kind}" if kind else ""
            raise DeadlineError(
                f"The budget {self} is below one start-up, which costs {entrance:.3g} "
                f"{self.currency} ({price.node} slots{of} for {_shortest(price):g} s); give more."
            )

    @property
    def prices(self) -> Prices:
        """The prices by host type; a single price has the type ""."""
        return {"": self.price} if isinstance(self.price, Price) else self.price

    @property
    def rate(self) -> str:
        """The initial price of a slot, in words."""
        costs = sorted({price.per_hour for price in self.prices.values()})
        span = " to ".join(f"{cost:g}" for cost in dict.fromkeys((costs[0], costs[-1])))
        by_type = "" if isinstance(self.price, Price) else ", by the type of its host"
        return f"{span} for a slot and hour{by_type}"

    def check_type(self, host_type: str | None, types: Collection[str]) -> None:
        """Check that the slots of a host have a price.

        Args:
            host_type: The type of the host.
            types: The types that have a price now.

        Raises:
            DeadlineError: The host has no type, or a type without a price.
        """
        if "" in types or host_type in types:
            return
        known = ", ".join(sorted(types)[:8]) + (", ..." if len(types) > 8 else "")
        if host_type is None:
            raise DeadlineError(
                f"The study's prices are by host type ({known}) and this host says none: name it "
                f"with {spelled('WorkerOptions(host_type=...)', '--host-type')} or {HOST_TYPE}."
            )
        raise DeadlineError(
            f"The study has no price for the host type {host_type!r} (it has some for {known}): "
            f"tell it one with 'optuna-deadline set STUDY --price {host_type}=PRICE' and start "
            "the worker again."
        )

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Budget:
        """The budget that :func:`dataclasses.asdict` turned into a mapping.

        Raises:
            DeadlineError: It is no budget, or not a valid one.
        """
        try:
            price = kept["price"]
            single = "per_hour" in price
            prices = _kept(price) if single else {kind: _kept(one) for kind, one in price.items()}
            return cls(**{**kept, "price": prices})
        except DeadlineError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DeadlineError(f"{kept!r} is not a budget with its prices.") from None

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}"


def _kept(price: Mapping[str, Any]) -> Price:
    later = tuple((since, per_hour) for since, per_hour in price.get("then", ()))
    return Price(**{**price, "then": later})


def _shortest(price: Price) -> float:
    return max(price.startup + _SHORTEST, price.minimum, price.granularity)


def _entrance(price: Price) -> float:
    """The minimum cost of a node."""
    return price.per_second * price.node * _shortest(price)


def make_budget(budget: BudgetLike | None, price: PriceLike | None) -> Budget | None:
    """Read a budget and its price; None if neither is given.

    Args:
        budget: An amount such as ``20``, ``"20usd"`` or ``"$20"``.
        price: The price of a slot for an hour, such as ``0.9``; or a :class:`Price`; or prices by
            host type, see :func:`~optuna_deadline.values.prices.make_prices`.

    Raises:
        DeadlineError: One is given without the other, one cannot be parsed, or the budget does
            not pay for one start-up.
    """
    if budget is None and price is None:
        return None
    if price is None:
        raise DeadlineError(
            f"A budget of {budget} needs a price: say what a slot costs for an hour, as in "
            f"{spelled('price=0.9', '--price 0.9')}."
        )
    if budget is None:
        some = spelled("budget='20usd'", "--budget 20usd")
        raise DeadlineError(f"A price without a budget limits nothing: give {some} too.")
    amount, currency = parse_amount(budget, "budget")
    prices, other = make_prices(price)
    if currency and other and currency != other:
        raise DeadlineError(
            f"The budget is in {currency} and the price in {other}; give both in one currency."
        )
    return Budget(amount, prices.get("", prices), currency or other or "usd")
