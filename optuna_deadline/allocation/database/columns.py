"""Records from rows: the columns of a statement are a record's fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from optuna_deadline.allocation.database.checked_columns import JsonColumn
from optuna_deadline.allocation.database.schema import columns_of

R = TypeVar("R")
_KEPT = 256  #: rows of each kind that a process keeps at least


class Records(Generic[R]):
    """The columns of a record in a statement, and the records of its rows.

    Equal rows give the same record: an unchanged trial stays the same object, and its columns are
    checked once. So a process keeps about as many rows as one reading gives, in two generations:
    a row that is not read again goes with the older one.

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

        def make(row: tuple[Any, ...]) -> R:
            values = list(row)
            for place, check in checks:
                values[place] = check(values[place])
            return record(*values)

        self._make = make
        self._cached, self._most = cached, _KEPT
        self._young: dict[tuple[Any, ...], R] = {}
        self._old = self._young

    def of(self, row: tuple[Any, ...]) -> R:
        """The record of a row with exactly these columns."""
        return self.all((row,))[0]

    def stored(self, record: R) -> dict[str, Any]:
        """A record's values by column, as the database keeps them."""
        return {
            column.name: stored(column, getattr(record, field) or None)
            if isinstance(column.type, JsonColumn)
            else getattr(record, field)
            for field, column in self._columns
        }

    def all(self, rows: Sequence[tuple[Any, ...]]) -> list[R]:
        """The records of some rows."""
        if not self._cached:
            return list(map(self._make, rows))
        self._most = max(_KEPT, len(rows), self._most - self._most // 16)
        known = self._young.get
        return [known(row) or self._remember(row) for row in rows]

    def _remember(self, row: tuple[Any, ...]) -> R:
        record = self._old.get(row) or self._make(row)
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[row] = record
        return record


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
