"""Large changes in portions: a transaction is to be short, however wide the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Row = TypeVar("Row")

#: Rows that one transaction changes. Tens of thousands of them take longer than the server waits
#: for a client that may be frozen; the whole would be undone, and tried again for ever.
MOST = 500


def portions(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in their order, at most so many at once."""
    for first in range(0, len(rows), MOST):
        yield rows[first : first + MOST]
