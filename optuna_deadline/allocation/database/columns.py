"""Records from rows: the columns of a statement are a record's fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from optuna_deadline.allocation.database.checked_columns import JsonColumn
from optuna_deadline.allocation.database.schema import columns_of

R = TypeVar("R")
_CACHED = 4096


class Records(Generic[R]):
    """The columns of a record in a statement, and the records of its rows.

    Equal rows give the same record: an unchanged trial stays the same object, and its columns are
    checked once.

    Args:
        record: Makes the record of the columns' values.
        table: The table.
        alias: Its alias in the statement.
        fields: The class whose fields select the columns; None for ``record``.
        cached: Whether rows are read more than once.
        renamed: The columns of fields whose names differ.

    Attributes:
        names: The columns, for the list after SELECT.
        size: The number of columns.
        of: Returns the record of a row with exactly these columns.
    """

    def __init__(
        self,
        record: Callable[..., R],
        table: sa.Table,
        alias: str,
        *,
        fields: type[Any] | None = None,
        cached: bool = True,
        **renamed: str,
    ) -> None:
        fields = fields or record  # type: ignore[assignment]
        columns: Sequence[Any] = columns_of(table, fields, **renamed)  # type: ignore[arg-type]
        before = {column: field for field, column in renamed.items()}
        self._columns = [(before.get(one.name, one.name), one) for one in columns]
        self.names = ", ".join([f"{alias}.{column.name}" for column in columns])
        self.size = len(columns)
        known = [(place, _check_of(column.type)) for place, column in enumerate(columns)]
        checks = [(place, check) for place, check in known if check is not None]

        def of(row: tuple[Any, ...]) -> R:
            values = list(row)
            for place, check in checks:
                values[place] = check(values[place])
            return record(*values)

        self.of: Callable[[tuple[Any, ...]], R] = lru_cache(_CACHED)(of) if cached else of

    def stored(self, record: R) -> dict[str, Any]:
        """A record's values by column, as the database keeps them."""
        return {
            column.name: stored(column, getattr(record, field) or None)
            if isinstance(column.type, JsonColumn)
            else getattr(record, field)
            for field, column in self._columns
        }

    def all(self, rows: Iterable[tuple[Any, ...]]) -> list[R]:
        """The records of some rows."""
        return list(map(self.of, rows))


def stored(column: sa.Column[Any], value: Any) -> Any:
    """A value as the database keeps it in a column."""
    if isinstance(column.type, JsonColumn):
        return column.type.process_bind_param(value, None)  # type: ignore[arg-type]
    return value


def content(column: sa.Column[Any]) -> Callable[[Any], Any]:
    """Reads one column's value, and refuses what no worker wrote."""
    return _check_of(column.type) or (lambda value: value)


def _check_of(kind: Any) -> Callable[[Any], Any] | None:
    if isinstance(kind, sa.Boolean):
        return lambda value: None if value is None else bool(value)
    if isinstance(kind, sa.types.TypeDecorator):
        return lambda value: kind.process_result_value(value, None)  # type: ignore[arg-type]
    return None
