"""Prices of slots by host type, in the notation of users or from a price list."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from optuna_deadline._numbers import is_count, make_plain, plain_number
from optuna_deadline.errors import DeadlineError
from optuna_deadline.values.deadlines import parse_deadline

#: Names of the columns of type, price and slots, in our lists and in two published formats.
_COLUMNS = (
    ("type", "per_hour", "slots"),
    ("Name", "On-demand", "GPUs"),
    ("instance", "price", "GPU"),
)
#: Further columns of our lists, which are fields of a price.
_ROUNDING = ("granularity", "minimum", "startup")
_TIME = "from"

_SIGNS = {"$": "usd", "€": "eur", "£": "gbp"}
_CURRENCIES = ("usd", "eur", "gbp")
_AMOUNT = re.compile(
    r"(?:(?P<sign>[$€£])\s*)?(?P<number>-?\d+(?:\.\d*)?|-?\.\d+)\s*(?P<unit>[a-z]*)"
)


@dataclass(frozen=True)
class Price:
    """The price of slots, and the rounding of the bill.

    Attributes:
        per_hour: Price of one slot for one hour, in the budget's currency.
        granularity: Seconds of a billing unit; a started unit is paid in full.
        startup: Seconds that are billed before a slot can be used.
        minimum: Minimum number of billed seconds.
        node: Slots that are bought together.
        then: Later prices: when each starts ("2h" after the study's start, or a time with its
            zone), and the price of one slot for one hour.
    """

    per_hour: float
    granularity: float = 1.0
    startup: float = 0.0
    minimum: float = 0.0
    node: int = 1
    then: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        make_plain(self)
        later = tuple((since, plain_number(per_hour)) for since, per_hour in self.then)
        object.__setattr__(self, "then", later)
        for per_hour in (self.per_hour, *(later for _, later in self.then)):
            if not (isinstance(per_hour, Real) and 0 < per_hour < math.inf):
                raise DeadlineError(
                    f"A price of {per_hour!r} for a slot and hour buys nothing; give a positive "
                    "one, or no budget at all."
                )
        for name in ("granularity", "startup", "minimum"):
            seconds = getattr(self, name)
            if not (isinstance(seconds, (int, float)) and 0 <= seconds < math.inf):
                raise DeadlineError(f"{name} must be seconds from 0, but got {seconds!r}.")
        if not is_count(self.node, 1):
            raise DeadlineError(f"node must be a number of slots from 1, but got {self.node!r}.")
        for since, _ in self.then:
            parse_deadline(since)

    @property
    def per_second(self) -> float:
        """The first price of one slot for one second."""
        return self.per_hour / 3600.0


PriceLike = str | int | float | Price | Mapping[str, "str | int | float | Price"]
#: Prices by host type; a single price has the type "".
Prices = Mapping[str, Price]


def make_prices(given: PriceLike) -> tuple[Prices, str]:
    """Parse prices, and their currency if it is named.

    Args:
        given: One price for all slots: ``0.9``, ``"0.9usd"`` or a :class:`Price`. Prices by host
            type: a mapping of such prices, or ``"p3.8xlarge=12.24/4,g4dn.xlarge=0.526"``, where 4
            is the number of slots that cost 12.24 together and are bought together. Or a file of
            them, as ``"prices.csv"`` or ``"prices.csv:TYPE,PRICE,SLOTS"``; see
            :func:`read_prices`.

    Raises:
        DeadlineError: A price cannot be parsed.
    """
    if isinstance(given, str) and (file := re.fullmatch(r"(.+\.csv)(?::(.*))?", given.strip())):
        names = [name.strip() for name in file[2].split(",")] if file[2] else None
        given = read_prices(file[1], names)
    elif isinstance(given, str) and "=" in given:
        given = _by_type(given)
    if not isinstance(given, Mapping):
        price, currency = _one(given)
        return {"": price}, currency
    found, currencies = {}, set()
    for kind, one in given.items():
        if not isinstance(kind, str) or not kind.strip():
            raise DeadlineError(f"{kind!r} is not a host type; name one as 'p3.8xlarge'.")
        found[kind.strip()], currency = _one(one)
        currencies.add(currency)
    if not found:
        raise DeadlineError("There is no price in the list of prices; name one type at least.")
    named = sorted(currencies - {""})
    if len(named) > 1:
        raise DeadlineError(f"The prices are in {' and '.join(named)}; give all in one currency.")
    return found, "".join(named)


def _by_type(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        kind, sign, price = (word.strip() for word in part.partition("="))
        if not (kind and sign and price):
            raise DeadlineError(
                f"{part.strip()!r} is not TYPE=PRICE; write prices as "
                "p3.8xlarge=12.24/4,g4dn.xlarge=0.526."
            )
        if kind in found:
            raise DeadlineError(f"The prices name {kind!r} twice; name each type once.")
        found[kind] = price
    return found


def _one(given: str | float | Price) -> tuple[Price, str]:
    if isinstance(given, Price):
        return given, ""
    if isinstance(given, str) and "/" in given:
        whole, _, slots = given.partition("/")
        if not re.fullmatch(r"[1-9]\d{0,4}", slots.strip(), re.ASCII):
            raise DeadlineError(
                f"{given!r} is not a price; write 12.24/4 for a host of 4 slots that costs 12.24."
            )
        per_hour, currency = parse_amount(whole, "price")
        return Price(per_hour / int(slots), node=int(slots)), currency
    per_hour, currency = parse_amount(given, "price")
    return Price(per_hour), currency


def parse_amount(given: str | float, what: str) -> tuple[float, str]:
    """Parse an amount of money, and its currency if it is named.

    Args:
        given: A number, or a string such as ``"20usd"`` or ``"$20"``.
        what: The name of the amount, for the error message.

    Raises:
        DeadlineError: It cannot be parsed.
    """
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise DeadlineError(f"{given!r} is not a {what}; give a number, or a text as '20usd'.")
    if not isinstance(given, str):
        return float(given), ""
    found = _AMOUNT.fullmatch(given.strip().lower())
    unit = (found["unit"] or _SIGNS.get(found["sign"] or "", "")) if found else "?"
    if found is None or (unit and unit not in _CURRENCIES):
        raise DeadlineError(
            f"{given!r} is not a {what}; give a number, with {', '.join(_CURRENCIES)} if you "
            "like, as in '20usd'."
        )
    return float(found["number"]), unit


def read_prices(path: str | Path, columns: Sequence[str] | None = None) -> dict[str, Price]:
    """Read a list of prices by host type.

    A row holds the price of a whole host for an hour; its slots are bought together. The columns
    are ``type``, ``per_hour`` and optionally ``slots`` (1 by default), ``granularity``,
    ``minimum`` and ``startup`` in seconds, and ``from``, the time at which the price starts: "2h"
    after the study's start, or an instant with its zone; empty for the first price.

    Args:
        path: A CSV file, with commas or semicolons.
        columns: Other names of the columns of type, price and slots; without the last one, a host
            has one slot.

    Raises:
        DeadlineError: The file cannot be read or parsed.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            rows = list(csv.DictReader(file, delimiter=";" if ";" in first else ","))
    except OSError as error:
        raise DeadlineError(f"The prices in {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DeadlineError(f"{path} is not a CSV file in UTF-8: {error}.") from None
    header = {name for name in rows[0] if name} if rows else set[str]()  # None: more values
    known = [names for names in _COLUMNS if header >= set(names[:2])]
    names = tuple(columns) if columns else next(iter(known), ())
    if len(names) not in (2, 3) or not header >= set(names if columns else names[:2]):
        raise DeadlineError(
            f"{path} has the columns {', '.join(sorted(header)) or 'of no row'}: name those of "
            "type, price and slots, as in FILE.csv:type,per_hour,slots."
        )
    found: dict[str, dict[str, Price]] = {}
    twice = set()
    for kind, since, price in _rows(rows, names, path):
        if found.setdefault(kind, {}).setdefault(since, price) != price:
            twice.add(kind)
    # A published list may have several offers of one name: such a type has no price.
    if twice and len(twice) == len(found):
        raise DeadlineError(f"{path} has several prices for {', '.join(sorted(twice))}.")
    if not found:
        raise DeadlineError(f"{path} has no price in the column {names[1]!r}.")
    return {
        kind: _in_time(kind, steps, path) for kind, steps in found.items() if kind not in twice
    }


def _rows(
    rows: list[dict[str, str]], names: Sequence[str], path: Path
) -> Iterator[tuple[str, str, Price]]:
    ours = names[0] == _COLUMNS[0][0]
    for line, row in enumerate(rows, start=2):
        kind, cost = (row.get(names[0]) or "").strip(), (row.get(names[1]) or "").strip()
        slots = (row.get(names[2]) or "").strip() if len(names) > 2 else ""
        if not ours and (not kind or not cost or (slots in ("", "0") and len(names) > 2)):
            continue  # published lists include machines without GPUs or without a spot price
        try:
            count = int(slots or 1)
            price = replace(Price(float(cost) / count, node=count), **_rounding(row))
        except (DeadlineError, ValueError, ArithmeticError):
            raise DeadlineError(
                f"{path}: line {line} is not a price: {cost!r} for {kind!r}."
            ) from None
        if not kind:
            raise DeadlineError(f"{path}: line {line} names no type.")
        yield kind, (row.get(_TIME) or "").strip() if ours else "", price


def _rounding(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: float(row[name]) for name in _ROUNDING if (row.get(name) or "").strip()}


def _in_time(kind: str, steps: Mapping[str, Price], path: Path) -> Price:
    if "" not in steps:
        raise DeadlineError(
            f"{path} has no first price for {kind!r}: leave 'from' empty in one of its lines."
        )
    later = tuple((since, price.per_hour) for since, price in steps.items() if since)
    return replace(steps[""], then=later)
