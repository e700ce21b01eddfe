"""Numbers as users give them, where NumPy's are numbers too, and as they read them."""

from __future__ import annotations

from dataclasses import fields
from numbers import Number
from typing import Any


def plain_number(value: Any) -> Any:
    """A number of NumPy's as one of Python's, which every database takes; else the value."""
    return value.item() if isinstance(value, Number) and hasattr(value, "item") else value


def is_count(value: object, least: int) -> bool:
    """Whether it is a whole number of at least ``least``; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def make_plain(record: Any) -> None:
    """Make the numbers in the fields of a new, also frozen, dataclass plain ones."""
    for each in fields(record):
        given = getattr(record, each.name)
        if (value := plain_number(given)) is not given:
            object.__setattr__(record, each.name, value)


def format_count(number: int, what: str) -> str:
    """A count with its noun: "1 slot", "3 slots"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
