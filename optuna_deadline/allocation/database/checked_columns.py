"""Columns whose content is checked when it is read.

Everyone with the database's login may write a row, so it may hold anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from optuna_deadline.errors import DeadlineError

_Kind = type | tuple[type, ...]
_SHOWN = 40  # characters of what is refused
_TEXTS = 1024  # that a column remembers: most rows hold one of few


class JsonColumn(sa.types.TypeDecorator[Any]):
    """A text column with JSON of one shape.

    Args:
        shape: Returns the value of a shape, or raises a ValueError or TypeError.
        absent: The text that NULL stands for; None reads NULL as None.
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, shape: Callable[[Any], Any], absent: str | None = None) -> None:
        super().__init__()
        self.shape, self.absent = shape, absent
        self._parsed = lru_cache(_TEXTS)(lambda text: shape(json.loads(text)))

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        """The text for the database."""
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        """The value of a row, which others share.

        Raises:
            DeadlineError: The text is not JSON, or JSON of another shape.
        """
        text = self.absent if value is None else value
        try:
            return None if text is None else self._parsed(text)
        except (ValueError, TypeError, RecursionError):
            raise unknown_content(text) from None


class OneOf(sa.types.TypeDecorator[str]):
    """A text column with one of some words."""

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int, *words: str) -> None:
        super().__init__(length)
        self.words = words

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """The word of a row; another one is an error in words."""
        if value is not None and value not in self.words:
            raise unknown_content(value)
        return value


class Within(sa.types.TypeDecorator[Any]):
    """A column of numbers between two, both included."""

    impl: Any = sa.Double
    cache_ok = True

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def process_result_value(self, value: float | None, dialect: sa.Dialect) -> float | None:
        """The number of a row; NaN and one outside are errors in words."""
        if value is not None and not self.low <= value <= self.high:
            raise unknown_content(value)
        return value


class WholeWithin(Within):
    """The check for whole numbers."""

    impl = sa.Integer
    cache_ok = True


def unknown_content(value: object) -> DeadlineError:
    """The error for a row that no worker wrote."""
    return DeadlineError(
        f"A row of the allocation table holds {str(value)[:_SHOWN]!r}, which no worker wrote: "
        "correct the row, or delete its study."
    )


class StoredObject(dict[str, Any]):
    """A JSON object; to ask for an entry that it lacks is an error in words."""

    def __missing__(self, key: str) -> None:
        raise unknown_content(dict(self))


def mapping(value: Any) -> StoredObject:
    """The shape of an object."""
    return StoredObject(_check(value, dict))


def pairs(first: _Kind, second: _Kind) -> Callable[[Any], Any]:
    """The shape of a list of pairs with these types."""

    def shape(value: Any) -> tuple[tuple[Any, Any], ...]:
        return tuple((_check(a, first), _check(b, second)) for a, b in value)

    return shape


def texts(value: Any) -> tuple[str, ...]:
    """The shape of a list of texts."""
    return tuple(_check(one, str) for one in _check(value, list))


def _check(value: Any, kind: _Kind) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError
    return value
