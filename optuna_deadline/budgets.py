"""Budgets and prices as people write them: "20usd" to spend at 0.9 for a slot and hour."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from optuna_deadline.errors import DeadlineError

BudgetLike = str | int | float

_AMOUNT = re.compile(
    r"(?:(?P<sign>[$€£])\s*)?(?P<number>-?\d+(?:\.\d*)?|-?\.\d+)\s*(?P<unit>[a-z]*)"
)
#: Seconds in which a slot can start, train something and save it.
_SHORTEST = 5.0

_SIGNS = {"$": "usd", "€": "eur", "£": "gbp"}
_CURRENCIES = ("usd", "eur", "gbp")


@dataclass(frozen=True)
class Price:
    """What slots cost, and how the bill is rounded.

    Attributes:
        per_hour: Of one slot for one hour, in the budget's currency.
        granularity: Seconds of a unit of the bill; a unit that has begun is paid whole.
        startup: Seconds that are billed before a slot can be used.
        minimum: Seconds that are billed at least.
        node: Slots that are bought at once.
    """

    per_hour: float
    granularity: float = 1.0
    startup: float = 0.0
    minimum: float = 0.0
    node: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.per_hour) and self.per_hour > 0):
            raise DeadlineError(
                f"A price of {self.per_hour:g} for a slot and hour buys nothing; give a positive "
                "one, or no budget at all."
            )
        for name in ("granularity", "startup", "minimum"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds >= 0):
                raise DeadlineError(f"{name} must be seconds from 0, but got {seconds!r}.")
        if self.node < 1:
            raise DeadlineError(f"node must be a number of slots from 1, but got {self.node!r}.")

    @property
    def per_second(self) -> float:
        """Of one slot for one second."""
        return self.per_hour / 3600.0


PriceLike = str | int | float | Price


@dataclass(frozen=True)
class Budget:
    """What a study may spend, on which terms.

    Attributes:
        amount: All that may be spent.
        price: What slots cost.
        currency: For people.
    """

    amount: float
    price: Price
    currency: str = "usd"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.amount) and self.amount > 0):
            raise DeadlineError(
                f"A budget of {self.amount:g} {self.currency} pays for nothing; give a positive "
                "amount as in '20usd'."
            )
        price = self.price
        seconds = max(price.startup + _SHORTEST, price.minimum, price.granularity)
        entrance = price.per_second * price.node * seconds
        if self.amount < entrance:
            raise DeadlineError(
                f"The budget {self} is below one start-up, which costs {entrance:.3g} "
                f"{self.currency} ({price.node} slots for {seconds:g} s); give more."
            )

    def to_json(self) -> str:
        """As it is kept in the table."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Budget:
        """As it was kept in the table."""
        kept: dict[str, Any] = json.loads(text)
        return cls(**{**kept, "price": Price(**kept["price"])})

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}"


def make_budget(budget: BudgetLike | None, price: PriceLike | None) -> Budget | None:
    """Read a budget and its price; None where neither is given.

    Args:
        budget: An amount such as ``20``, ``"20usd"`` or ``"$20"``.
        price: For a slot and hour, such as ``0.9``; or a :class:`Price`.

    Raises:
        DeadlineError: One is given without the other, they cannot be read, or the budget does not
            pay for one start-up.
    """
    if budget is None and price is None:
        return None
    if price is None:
        raise DeadlineError(
            f"A budget of {budget} needs a price: say what a slot costs for an hour, as in "
            "price=0.9 (--price 0.9)."
        )
    if budget is None:
        raise DeadlineError("A price without a budget limits nothing: give budget='20usd' too.")
    amount, currency = parse_amount(budget, "budget")
    if isinstance(price, Price):
        return Budget(amount, price, currency or "usd")
    per_hour, other = parse_amount(price, "price")
    if currency and other and currency != other:
        raise DeadlineError(
            f"The budget is in {currency} and the price in {other}; give both in one currency."
        )
    return Budget(amount, Price(per_hour), currency or other or "usd")


def parse_amount(given: str | float, what: str) -> tuple[float, str]:
    """An amount of money, and its currency where it is named.

    Args:
        given: A number, or a text such as ``"20usd"`` or ``"$20"``.
        what: What it is, for the error.

    Raises:
        DeadlineError: It cannot be read.
    """
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise DeadlineError(f"{given!r} is no {what}; give a number, or a text as '20usd'.")
    if not isinstance(given, str):
        return float(given), ""
    found = _AMOUNT.fullmatch(given.strip().lower())
    unit = (found["unit"] or _SIGNS.get(found["sign"] or "", "")) if found else "?"
    if found is None or (unit and unit not in _CURRENCIES):
        raise DeadlineError(
            f"{given!r} is no {what}; give a number, with {', '.join(_CURRENCIES)} if you like, "
            "as in '20usd'."
        )
    return float(found["number"]), unit
